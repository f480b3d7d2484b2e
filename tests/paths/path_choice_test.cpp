// SPDX-License-Identifier: Apache-2.0
// Choice of the fabrics that connect to a peer, by the preferences of the real table and for invented hardware.
#include <fmt/core.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "paths/path_choice.hpp"
#include "paths/path_reasons.hpp"
#include "restore/device_reach.hpp"

BOOST_AUTO_TEST_SUITE(path_choice)

using namespace shardwire;

namespace {

FabricTraits traits(const std::string& name, Reach reach, transport::Preference preference,
                    const std::string& domain = "one") {
  return {{name, domain}, reach, preference};
}

// Shared memory, two kinds of hardware with RDMA reads, streams.
const std::vector<FabricTraits> all{
    traits("shm", Reach::host, {.map = 1, .read = 4}), traits("ucx", Reach::network, {.read = 2, .message = 6}),
    traits("libfabric", Reach::network, {.read = 3, .message = 7}), traits("tcp", Reach::network, {.message = 5})};

std::vector<wire::FabricOffer> offers_of(const std::vector<FabricTraits>& traits) {
  std::vector<wire::FabricOffer> offers;
  for (const FabricTraits& one : traits) offers.push_back(one.offer);
  return offers;
}

std::vector<std::string> names(const std::vector<FabricTraits>& own, const std::vector<std::size_t>& indexes) {
  std::vector<std::string> result;
  for (const std::size_t index : indexes) result.push_back(own[index].offer.name);
  return result;
}

using Names = std::vector<std::string>;

/// The fabrics that are connected until no further one would improve the path; `access` is each fabric's access to the
/// memory.
Names connected(const std::vector<FabricTraits>& own, const std::vector<wire::FabricOffer>& theirs, bool same_host,
                std::map<std::string, RegionAccess> access, bool wants_messages = false) {
  Names result;
  int worst = no_path;
  bool sends = false;
  for (const std::size_t one : common_fabrics(own, theirs, same_host)) {
    if (!worth_connecting(own[one].preference, worst, wants_messages && !sends)) continue;
    const RegionAccess found = access[own[one].offer.name];
    worst = best_path(worst, own[one].preference, found);
    sends = sends || found.message;
    result.push_back(own[one].offer.name);
  }
  return result;
}

constexpr RegionAccess maps{.mapped = true, .readable = true};
constexpr RegionAccess reads{.readable = true, .message = true};
constexpr RegionAccess sends{.message = true};

}  // namespace

BOOST_AUTO_TEST_CASE(fabrics_that_both_have_are_tried_best_first_and_those_within_a_host_only_there) {
  BOOST_TEST((names(all, common_fabrics(all, offers_of(all), true)) == Names{"shm", "ucx", "libfabric", "tcp"}));
  BOOST_TEST((names(all, common_fabrics(all, offers_of(all), false)) == Names{"ucx", "libfabric", "tcp"}));
  BOOST_TEST((names(all, common_fabrics(all, offers_of({all[3], all[0]}), true)) == Names{"shm", "tcp"}));
}

BOOST_AUTO_TEST_CASE(a_fabric_of_another_domain_is_none_in_common) {
  const auto elsewhere = traits("ucx", Reach::network, {.read = 2}, "another build");
  BOOST_TEST(common_fabrics(all, offers_of({elsewhere}), true).empty());
  BOOST_TEST(common_fabrics(all, {}, true).empty());
  BOOST_TEST(common_fabrics({}, offers_of(all), true).empty());
}

BOOST_AUTO_TEST_CASE(memory_that_is_mapped_needs_nothing_else) {
  BOOST_TEST((connected(all, offers_of(all), true, {{"shm", maps}}) == Names{"shm"}));
}

BOOST_AUTO_TEST_CASE(hardware_that_reads_is_better_than_reading_by_the_kernel_and_that_better_than_messages) {
  const RegionAccess attach{.readable = true};
  BOOST_TEST((connected(all, offers_of(all), true, {{"shm", attach}, {"ucx", reads}}) == Names{"shm", "ucx"}));
  const std::vector<FabricTraits> plain{all[0], all[3]};
  BOOST_TEST((connected(plain, offers_of(plain), true, {{"shm", attach}}) == Names{"shm"}));
  BOOST_TEST((connected(plain, offers_of(plain), true, {{"tcp", sends}}) == Names{"shm", "tcp"}));
}

BOOST_AUTO_TEST_CASE(between_hosts_the_second_hardware_and_streams_are_left_alone_where_the_first_reads) {
  BOOST_TEST((connected(all, offers_of(all), false, {{"ucx", reads}}) == Names{"ucx"}));
  BOOST_TEST(
      (connected(all, offers_of(all), false, {{"ucx", sends}, {"libfabric", reads}}) == Names{"ucx", "libfabric"}));
  BOOST_TEST((connected(all, offers_of(all), false, {{"ucx", sends}, {"libfabric", sends}, {"tcp", sends}}) ==
              Names{"ucx", "libfabric", "tcp"}));
}

BOOST_AUTO_TEST_CASE(messages_that_are_asked_for_are_connected_beside_what_is_better) {
  BOOST_TEST((connected(all, offers_of(all), true, {{"shm", maps}, {"ucx", reads}}, true) == Names{"shm", "ucx"}));
  const std::vector<FabricTraits> plain{all[0], all[3]};
  BOOST_TEST((connected(plain, offers_of(plain), true, {{"shm", maps}, {"tcp", sends}}, true) == Names{"shm", "tcp"}));
}

/// A region of a peer that is mapped unless it is empty.
struct Imported final : transport::RemoteRegion {
  explicit Imported(std::size_t bytes) : memory(bytes) {}
  [[nodiscard]] transport::ConstMemory mapped() const override {
    return memory.empty() ? transport::ConstMemory() : transport::ConstMemory{memory.data(), memory.size(), {}};
  }
  std::vector<std::byte> memory;
};

// A fabric's capabilities for host memory do not tell its capabilities for device memory.
BOOST_AUTO_TEST_CASE(the_best_path_depends_on_the_kind_of_memory) {
  const transport::Path host{.map = true, .read = true, .message = true};
  const transport::Path device{.read = true, .gpu_direct = true};
  const transport::Path by_way_of_host{.read = true};
  const transport::MemoryPlace gpu{MemoryKind::cuda, 0};
  const transport::Preference preference{.map = 1, .read = 2, .message = 5};
  const Imported mapped(16);
  const Imported unmapped(0);
  BOOST_TEST(best_path(no_path, preference, access_to(host, {}, &mapped)) == 1);
  BOOST_TEST(best_path(no_path, preference, access_to(host, {}, &unmapped)) == 2);
  BOOST_TEST(best_path(no_path, preference, access_to(host, {}, nullptr)) == 5);
  BOOST_TEST(best_path(no_path, preference, access_to(device, gpu, &mapped)) == 2);
  BOOST_TEST(best_path(no_path, preference, access_to(device, gpu, nullptr)) == no_path);
  BOOST_TEST(best_path(no_path, preference, access_to(by_way_of_host, gpu, &mapped)) == no_path);
  BOOST_TEST(best_path(no_path, preference, access_to({}, {}, &mapped)) == no_path);
}

BOOST_AUTO_TEST_CASE(a_path_counts_only_as_far_as_it_reaches_where_the_bytes_are_wanted) {
  const transport::Preference preference{.map = 1, .read = 2, .message = 5};
  const RegionAccess full{.mapped = true, .readable = true, .message = true};
  BOOST_TEST(best_path(no_path, preference, access_into(full, true, true)) == 1);
  BOOST_TEST(best_path(no_path, preference, access_into(full, false, true)) == 2);
  BOOST_TEST(best_path(no_path, preference, access_into(full, false, false)) == 5);
  BOOST_TEST(best_path(no_path, preference, access_into({.message = true}, true, true)) == 5);
}

BOOST_AUTO_TEST_CASE(handles_say_where_memory_lies) {
  std::byte byte{};
  for (const transport::MemoryPlace place : {transport::MemoryPlace{}, transport::MemoryPlace{MemoryKind::cuda, 3}}) {
    const wire::RegionHandle handle = handle_of(transport::Memory{&byte, 1, place});
    BOOST_TEST(handle.size_bytes == 1U);
    BOOST_TEST((place_of(handle) == place));
  }
  BOOST_TEST(!place_of({1, {}, 200, 0}).has_value());
}

BOOST_AUTO_TEST_CASE(what_a_fabric_never_does_is_no_path) {
  BOOST_TEST(best_path(no_path, {.message = 5}, {.mapped = true, .readable = true}) == no_path);
  BOOST_TEST(best_path(no_path, {.map = 1, .read = 4}, {.message = true}) == no_path);
  BOOST_TEST(best_path(3, {.map = 1, .read = 4}, {.readable = true}) == 3);
  BOOST_TEST(best_path(5, {.map = 1, .read = 4}, maps) == 1);
  BOOST_TEST(!worth_connecting({}, no_path, true));
}

BOOST_AUTO_TEST_CASE(the_fabric_reads_that_reads_most_bytes_straight) {
  const auto chosen = [](std::size_t preferred, std::vector<ByteCount> bytes) { return reads_most(preferred, bytes); };
  BOOST_TEST(chosen(1, {100, 100, 100}) == 1U);
  BOOST_TEST(chosen(1, {0, 0}) == 1U);
  BOOST_TEST(chosen(0, {100, 101, 50}) == 1U);
  BOOST_TEST(chosen(1, {200, 100, 201}) == 2U);
}

/// The offer of a NIC that can access the memory of some devices, except one allocation.
struct NicEndpoint final : transport::Endpoint {
  void send(transport::ByteView, std::span<const transport::ConstMemory>, transport::Completion) override {}
  std::unique_ptr<transport::RemoteRegion> import_region(transport::RegionKey, ByteCount) override { return nullptr; }
  void read(const transport::RemoteRegion&, std::span<const transport::ReadRange>, transport::Completion) override {}
  [[nodiscard]] bool failed() const override { return false; }
  [[nodiscard]] transport::Path path(const transport::MemoryPlace& place) const override {
    if (direct.count(place.device) == 0)
      return {.why_not = {FallbackReason::no_gpu_direct, fmt::format("device {} is far", place.device)}};
    return {.carrier = "nic",
            .read = true,
            .max_read_ranges = 9,
            .gpu_direct = true,
            .why_not = {FallbackReason::by_design, "a NIC maps nothing"}};
  }
  [[nodiscard]] std::string why_not_into(const memory::DeviceAllocation& allocation) const override {
    return allocation.managed ? "it migrates" : "";
  }
  void abort() override {}

  std::set<int> direct{0, 1};
};

BOOST_AUTO_TEST_CASE(what_cannot_be_read_into_is_found_by_its_device) {
  const NicEndpoint endpoint;
  const memory::DeviceAllocation on_first{.device = 0};
  const memory::DeviceAllocation migrates{.device = 1, .managed = true};
  const TensorPlaces places{on_first, std::nullopt, memory::DeviceAllocation{.device = 1}, migrates};
  BOOST_TEST(!restore::unfit_target(endpoint, places, 0).has_value());
  const auto unfit = restore::unfit_target(endpoint, places, 1);
  BOOST_REQUIRE(unfit.has_value());
  BOOST_TEST(unfit->entry == 3U);
  BOOST_TEST(unfit->why == "it migrates");
  BOOST_TEST(!restore::unfit_target(endpoint, {}, 1).has_value());
}

BOOST_AUTO_TEST_CASE(paths_to_devices_say_which_are_staged_and_that_messages_carry_all) {
  NicEndpoint endpoint;
  const TransportPath host{.transport = "ucx", .device = "lanes", .read = true, .message = true};
  const std::vector<int> devices{1, 2};
  const auto some = paths_of_devices(endpoint, devices, host);
  BOOST_REQUIRE(some.size() == 2U);
  BOOST_TEST((some[0].read && some[0].gpu_direct && some[0].message));
  BOOST_TEST(some[0].device == "nic");
  BOOST_TEST(some[0].max_message_ranges == 1U);
  BOOST_TEST((some[0].fallback_reason == FallbackReason::by_design));
  BOOST_TEST(some[0].fallback_detail == "devices 1: a NIC maps nothing");
  BOOST_TEST((some[1].message && !some[1].read && !some[1].gpu_direct));
  BOOST_TEST((some[1].fallback_reason == FallbackReason::no_gpu_direct));
  BOOST_TEST(some[1].fallback_detail == "devices 2: staged through host memory: device 2 is far");
  const auto both = paths_of_devices(endpoint, std::vector{0, 1}, host);
  BOOST_REQUIRE(both.size() == 1U);
  BOOST_TEST(both[0].fallback_detail == "a NIC maps nothing");
  endpoint.direct.clear();
  const auto none = paths_of_devices(endpoint, devices, host);
  BOOST_REQUIRE(none.size() == 1U);
  BOOST_TEST(none[0].fallback_detail == "staged through host memory: device 1 is far, device 2 is far");
  BOOST_TEST(why_staged(endpoint, {}) == "staged through host memory: device 0 is far");
  BOOST_TEST(paths_of_devices(endpoint, devices, {.transport = "shm", .map = true}).empty());
}

BOOST_AUTO_TEST_CASE(of_several_reasons_the_first_that_somebody_can_remove_is_told) {
  const RejectedPath other_host{"shm", {FallbackReason::other_host, "it is on another host"}};
  const RejectedPath limit{"ucx", {FallbackReason::memlock, "ulimit -l"}};
  const RejectedPath absent{"libfabric", {FallbackReason::no_device, "no EFA"}};
  const RejectedPath design{"", {FallbackReason::by_design, "a NIC maps nothing"}};
  const auto one = [](const std::vector<RejectedPath>& rejected) { return in_one(rejected); };
  BOOST_TEST((one({}) == support::Fallback{}));
  BOOST_TEST(
      (one({other_host, limit, absent}) ==
       support::Fallback{FallbackReason::memlock, "shm: it is on another host; ucx: ulimit -l; libfabric: no EFA"}));
  BOOST_TEST((one({other_host, design}) ==
              support::Fallback{FallbackReason::other_host, "shm: it is on another host; a NIC maps nothing"}));
}

BOOST_AUTO_TEST_SUITE_END()
