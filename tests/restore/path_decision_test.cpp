// SPDX-License-Identifier: Apache-2.0
// Paths chosen for a source whose fabrics are connected, and the reasons in reports.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "restore/made_source.hpp"
#include "restore/path_decision.hpp"

BOOST_AUTO_TEST_SUITE(path_decision)

using namespace shardwire;
using test::key;
using test::MadeEndpoint;
using test::MadeLink;
using test::MadeRegion;
using test::shm;
using test::tcp;
using test::ucx;

namespace {

using Regions = std::vector<std::shared_ptr<transport::RemoteRegion>>;

std::shared_ptr<transport::RemoteRegion> mapped() {
  return std::make_shared<MadeRegion>(std::vector<std::uint64_t>(8, 42));
}
std::shared_ptr<transport::RemoteRegion> imported() {
  return std::make_shared<MadeRegion>();
}

const transport::Path maps{
    .carrier = "memory", .map = true, .why_not = {FallbackReason::ptrace_scope, "ptrace is off"}};
const transport::Path maps_and_reads{.carrier = "memory", .map = true, .read = true};
const transport::Path reads{
    .carrier = "nic", .read = true, .why_not = {FallbackReason::by_design, "a NIC maps nothing"}};
const transport::Path reads_and_sends{
    .carrier = "nic", .read = true, .message = true, .why_not = {FallbackReason::by_design, "a NIC maps nothing"}};
const transport::Path sends{
    .carrier = "tcp/eth0", .message = true, .why_not = {FallbackReason::by_design, "streams only carry messages"}};

/// A binding of tensors 0 and 2, to which the test adds fabrics.
struct Bound {
  Bound() {
    binding.layout_rank = Rank{3};
    binding.record.member = 1;
    binding.tensors = {0, 2};
    binding.link = link;
    link->offer({shm, ucx, tcp});
    link->hello.rank = 1;
  }
  /// The source's memory, as it is described over each fabric.
  std::vector<wire::RegionHandle> handles{{64, {}}};
  std::vector<wire::TensorHandle> tensors{{0, 0, 0}, {2, 0, 32}};

  void add(std::size_t fabric, const transport::Path& host, Regions regions, GenerationWord word = {},
           const transport::Path& device = {}) {
    restore::BoundFabric bound{.fabric = fabric, .reply = {}};
    bound.reply.max_pack_bytes = 1000 + fabric;
    bound.reply.regions = handles;
    bound.reply.tensors = tensors;
    bound.channel = std::make_shared<FabricChannel>(std::make_unique<MadeEndpoint>(host, device));
    bound.path = host;
    bound.regions = std::move(regions);
    bound.keys = {key(table.name(fabric))};
    bound.word = std::move(word);
    add_fabric(binding, std::move(bound), inputs());
  }
  restore::PathInputs inputs() { return {table, reach, rounds}; }
  int worst() { return worst_path(binding, inputs()); }
  PathDecision decide() { return decide_path(binding, inputs()); }
  std::string reasons() { return to_text(decide().rejected); }

  FabricTable table = test::made_table();
  std::shared_ptr<MadeLink> link = std::make_shared<MadeLink>();  // owners: this and the binding
  Catalog wanted{Rank{0}, 1};
  TensorPlaces places;
  restore::DeviceReach reach{wanted, places};
  const RoundsGroup* rounds = nullptr;
  restore::Binding binding;
};

struct Refused {
  ErrorCode code{};
  std::string text;
};
Refused refused(Bound& bound) {
  try {
    static_cast<void>(bound.decide());
  } catch (const Error& error) {
    BOOST_TEST((error.ranks() == std::vector{Rank{3}}));
    return {error.code(), error.what()};
  }
  BOOST_FAIL("there is a path");
  return {};
}

}  // namespace

// --- worst_path ---

BOOST_AUTO_TEST_CASE(a_binding_that_has_asked_nothing_has_no_path_unless_it_reads_nothing) {
  Bound bound;
  BOOST_TEST(bound.worst() == no_path);
  bound.binding.tensors.clear();
  BOOST_TEST(bound.worst() == 0);
}

BOOST_AUTO_TEST_CASE(the_worst_path_is_that_of_the_memory_which_is_reached_worst) {
  Bound bound;
  bound.handles = {{64, {}}, {64, {}}};
  bound.tensors = {{0, 0, 0}, {2, 1, 0}};
  bound.add(shm, maps, {mapped(), nullptr});
  BOOST_TEST(bound.worst() == no_path);
  bound.add(tcp, sends, {nullptr, nullptr});
  BOOST_TEST(bound.worst() == 5);
  bound.add(ucx, reads, {nullptr, imported()});
  BOOST_TEST(bound.worst() == 2);
}

BOOST_AUTO_TEST_CASE(the_best_path_to_some_memory_counts_not_the_one_that_was_added_last) {
  Bound bound;
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.worst() == 5);
  bound.add(shm, maps, {mapped()});
  BOOST_TEST(bound.worst() == 1);
  bound.add(ucx, reads_and_sends, {imported()});
  BOOST_TEST(bound.worst() == 1);
}

BOOST_AUTO_TEST_CASE(memory_in_no_region_comes_by_message_only) {
  Bound bound;
  bound.tensors = {{0, 0, 0}, {2, wire::no_region, 0}};
  bound.add(shm, maps_and_reads, {mapped()});
  BOOST_TEST(bound.worst() == no_path);
  BOOST_TEST(bound.binding.unregistered_path == no_path);
  bound.add(ucx, reads_and_sends, {imported()});
  BOOST_TEST(bound.worst() == 6);
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.worst() == 5);
  BOOST_TEST(bound.binding.unregistered_path == 5);
}

BOOST_AUTO_TEST_CASE(memory_that_is_wanted_on_a_device_has_the_paths_that_lead_there) {
  Bound bound;
  bound.binding.targets = {{{memory::on_host, 32}}, {{0, 32}}};
  bound.add(ucx, reads, {imported()});  // for host memory only
  BOOST_TEST(bound.worst() == no_path);
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.worst() == 5);
  bound.add(shm, maps, {mapped()});  // devices load mapped host memory through their copies
  BOOST_TEST(bound.worst() == 1);
}

// --- add_fabric ---

BOOST_AUTO_TEST_CASE(a_fabric_is_added_with_what_it_does_for_each_region) {
  Bound bound;
  bound.handles = {{64, {}}, {128, {}}};
  bound.tensors = {{0, 0, 0}, {2, 1, 0}};
  bound.add(shm, maps_and_reads, {mapped(), imported()});
  bound.add(tcp, sends, {nullptr, nullptr});
  const auto& regions = bound.binding.regions;
  BOOST_TEST((regions[0].access[0].mapped && regions[0].access[0].readable && !regions[0].access[0].message));
  BOOST_TEST((!regions[1].access[0].mapped && regions[1].access[0].readable));
  BOOST_TEST((!regions[0].access[1].mapped && !regions[0].access[1].readable && regions[0].access[1].message));
  BOOST_TEST((regions[0].over[0] != nullptr && regions[0].over[1] == nullptr));
  BOOST_TEST(regions[0].bytes == 64U);
  BOOST_TEST(regions[1].bytes == 128U);
  BOOST_TEST(regions[0].mapped_by == "memory");
  BOOST_TEST(regions[1].mapped_by.empty());
  BOOST_TEST(bound.binding.mapped_by() == "memory");
  BOOST_TEST(bound.binding.max_pack_bytes == 1000 + tcp);
  BOOST_TEST((bound.binding.handles == bound.tensors));
  BOOST_TEST((bound.binding.keys == std::set<Bytes>{key("shm"), key("tcp")}));
  BOOST_TEST((bound.binding.device_at_source(0) == memory::on_host));
}

BOOST_AUTO_TEST_CASE(memory_of_a_device_is_staged_by_messages_and_read_where_host_memory_has_no_part) {
  const transport::Path gpu_direct{.carrier = "nic", .read = true, .gpu_direct = true};
  const transport::Path by_way_of_host{.carrier = "nic", .read = true};
  for (const bool direct : {true, false}) {
    Bound bound;
    bound.handles = {{64, {}, wire::RegionHandle::cuda, 1}};
    bound.add(ucx, reads_and_sends, {imported()}, {}, direct ? gpu_direct : by_way_of_host);
    BOOST_TEST(bound.worst() == (direct ? 2 : 6));
    BOOST_TEST(bound.binding.device_at_source(0).value() == 1);
  }
}

BOOST_AUTO_TEST_CASE(memory_of_a_kind_that_is_not_known_is_not_reached) {
  Bound bound;
  bound.handles = {{64, {}, 9, 0}};
  bound.add(ucx, reads_and_sends, {imported()});
  BOOST_TEST(!bound.binding.regions[0].place);
  BOOST_TEST(!bound.binding.device_at_source(0));
  BOOST_TEST(bound.worst() == no_path);
}

BOOST_AUTO_TEST_CASE(a_word_that_is_mapped_replaces_one_that_is_read_and_no_other_does) {
  Bound bound;
  const GenerationWord read_over_ucx{imported(), 8, {}};
  const GenerationWord mapped_over_shm{mapped(), 8, {}};
  bound.add(tcp, sends, {nullptr}, {imported(), 8, {}});  // no fabric reads it
  BOOST_TEST(!bound.binding.word.region);
  bound.add(ucx, reads, {imported()}, read_over_ucx);
  BOOST_TEST((bound.binding.word.region == read_over_ucx.region));
  bound.add(shm, maps, {mapped()}, mapped_over_shm);
  BOOST_TEST((bound.binding.word.region == mapped_over_shm.region));
  bound.add(ucx, reads, {imported()}, {imported(), 8, {}});
  BOOST_TEST((bound.binding.word.region == mapped_over_shm.region));
  bound.add(shm, maps, {mapped()}, {mapped(), 16, {}});
  BOOST_TEST((bound.binding.word.region == mapped_over_shm.region));
}

// --- decide_path ---

BOOST_AUTO_TEST_CASE(readers_and_senders_are_chosen_by_preference_and_not_by_their_order) {
  Bound bound;
  bound.add(shm, maps_and_reads, {imported()});
  bound.add(ucx, reads_and_sends, {imported()});
  bound.add(tcp, sends, {nullptr});
  PathDecision decision = bound.decide();
  BOOST_TEST(decision.read_by.value() == 1U);  // ucx
  BOOST_TEST(decision.sent_by.value() == 2U);  // tcp
  Bound other;
  other.add(tcp, sends, {nullptr});
  other.add(ucx, reads_and_sends, {imported()});
  other.add(shm, maps_and_reads, {imported()});
  decision = other.decide();
  BOOST_TEST(decision.read_by.value() == 1U);
  BOOST_TEST(decision.sent_by.value() == 0U);
}

BOOST_AUTO_TEST_CASE(what_no_fabric_does_is_chosen_for_none) {
  Bound bound;
  bound.add(shm, maps, {mapped()});
  const PathDecision decision = bound.decide();
  BOOST_TEST(!decision.read_by);
  BOOST_TEST(!decision.sent_by);
  BOOST_TEST(decision.rejected.empty());
}

BOOST_AUTO_TEST_CASE(a_fabric_that_reads_more_of_devices_memory_is_preferred) {
  const transport::Path gpu_direct{.carrier = "nic", .read = true, .gpu_direct = true};
  for (const ByteCount of_device : {ByteCount{100}, ByteCount{10}}) {
    Bound bound;
    bound.handles = {{64, {}, wire::RegionHandle::cuda, 0}, {64, {}}};
    bound.tensors = {{0, 0, 0}, {2, 1, 0}};
    bound.binding.targets = {{{memory::on_host, of_device}}, {{memory::on_host, 50}}};
    bound.add(ucx, reads_and_sends, {imported(), imported()});              // host memory only
    bound.add(shm, maps_and_reads, {imported(), nullptr}, {}, gpu_direct);  // device memory only
    BOOST_TEST(bound.decide().read_by.value() == (of_device == 100 ? 1U : 0U));
  }
}

BOOST_AUTO_TEST_CASE(memory_outside_of_an_arena_is_the_reason_where_a_fabric_maps) {
  Bound bound;
  bound.add(shm, maps, {imported()});
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.reasons() == "its memory is not in an arena; ptrace is off");
  Bound reading;
  reading.add(shm, maps_and_reads, {imported()});
  BOOST_TEST(reading.reasons() == "its memory is not in an arena");
  Bound unregistered;
  unregistered.tensors = {{0, 0, 0}, {2, wire::no_region, 0}};
  unregistered.add(shm, maps, {mapped()});
  unregistered.add(tcp, sends, {nullptr});
  BOOST_TEST(unregistered.reasons() == "its memory is not in an arena; ptrace is off");
}

BOOST_AUTO_TEST_CASE(where_no_fabric_maps_each_better_one_has_its_reason) {
  Bound bound;
  bound.binding.excluded = {{shm, "nobody listens"}};
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.reasons() == "shm: nobody listens; ucx: it was not connected; libfabric: its library was not found");
}

BOOST_AUTO_TEST_CASE(reasons_tell_apart_what_the_peer_lacks_and_what_does_not_reach_it) {
  Bound bound;
  bound.link->local = false;
  bound.link->offer({shm, tcp});
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.reasons() ==
             "shm: it is on another host; ucx: member 1 has not opened it; libfabric: its library was not found");
  bound.link->hello.fabrics.push_back({"ucx", "two"});
  BOOST_TEST(bound.reasons().find("ucx: member 1 is in another domain of it (two, here one)") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(where_nothing_better_is_left_the_fabric_itself_says_why_it_does_not_map) {
  Bound bound;
  bound.table.rows = {bound.table.rows[3]};
  bound.add(tcp, sends, {nullptr});
  BOOST_TEST(bound.reasons() == "streams only carry messages");
}

BOOST_AUTO_TEST_CASE(memory_of_a_device_that_passes_host_memory_is_explained_first) {
  Bound bound;
  bound.handles = {{64, {}, wire::RegionHandle::cuda, 0}};
  const transport::Path staged{.message = true, .why_not = {FallbackReason::no_gpu_direct, "tcp moves host memory"}};
  bound.add(tcp, sends, {nullptr}, {}, staged);
  BOOST_TEST(bound.reasons().starts_with("device memory is staged through host memory: tcp moves host memory; shm: "));
}

BOOST_AUTO_TEST_CASE(without_any_path_the_error_names_the_source_and_every_reason) {
  Bound bound;
  bound.binding.excluded = {{ucx, "flushed"}, {tcp, "nobody listens"}};
  bound.add(shm, maps, {imported()});
  const Refused error = refused(bound);
  BOOST_TEST(to_string(error.code) == "unsupported");
  BOOST_TEST(error.text ==
             "no transport of this session carries the bytes of source rank 3 (member 1); shm: ptrace is off; ucx: "
             "flushed; libfabric: its library was not found; tcp: nobody listens");
  bound.binding.lacked_resources = true;
  BOOST_TEST(to_string(refused(bound).code) == "out_of_resources");
}

BOOST_AUTO_TEST_CASE(device_memory_without_any_path_has_its_own_reason) {
  Bound bound;
  bound.handles = {{64, {}, wire::RegionHandle::cuda, 0}};
  bound.add(ucx, reads, {imported()});
  const Refused error = refused(bound);
  BOOST_TEST(error.text.ends_with("memory of a device that is neither mapped nor read needs messages: open tcp too"));
}

BOOST_AUTO_TEST_CASE(a_binding_without_any_fabric_has_no_path_unless_it_reads_nothing) {
  Bound bound;
  BOOST_TEST(to_string(refused(bound).code) == "unsupported");
  bound.binding.tensors.clear();
  const PathDecision decision = bound.decide();
  BOOST_TEST((!decision.read_by && !decision.sent_by && decision.rejected.empty()));
}

BOOST_AUTO_TEST_CASE(memory_that_comes_in_rounds_of_a_collective_needs_no_path) {
  const RoundsGroup between_hosts({"collective", 0, {memory::on_host, memory::on_host}});
  const RoundsGroup between_devices({"collective", 0, {0, 0}});
  Bound bound;
  bound.tensors = {{0, wire::no_region, 0}, {2, wire::no_region, 0}};
  bound.add(shm, maps, {nullptr});
  BOOST_TEST(bound.worst() == no_path);
  BOOST_TEST(to_string(refused(bound).code) == "unsupported");
  bound.rounds = &between_devices;
  BOOST_TEST(!may_come_in_rounds(bound.binding, 0, memory::on_host, bound.rounds));
  BOOST_TEST(to_string(refused(bound).code) == "unsupported");
  bound.rounds = &between_hosts;
  BOOST_TEST(may_come_in_rounds(bound.binding, 0, memory::on_host, bound.rounds));
  BOOST_TEST(!may_come_in_rounds(bound.binding, 0, 0, bound.rounds));
  BOOST_TEST(!bound.decide().sent_by);
  bound.binding.own = std::make_shared<detail::PublicationState>();
  BOOST_TEST(!may_come_in_rounds(bound.binding, 0, memory::on_host, bound.rounds));
}

BOOST_AUTO_TEST_SUITE_END()
