// SPDX-License-Identifier: Apache-2.0
#include "move/choice.hpp"

#include <boost/test/unit_test.hpp>

#include <numeric>

#include "move/device_limits.hpp"
#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(choice)

using namespace shardwire;
using namespace shardwire::move;

namespace {

// `rows` rows of `row` elements, `gap` elements of the source between them; the target is dense.
Transfer rows_of(std::uint32_t peer, Extent rows, Extent row, Extent gap, ByteCount item_bytes = 4) {
  Transfer transfer;
  transfer.peer = peer;
  transfer.box = Box::whole({rows, row});
  transfer.held = {transfer.box, 0, {row + gap, 1}};
  transfer.wanted = {transfer.box, 0, {row, 1}};
  transfer.item_bytes = item_bytes;
  return transfer;
}

constexpr Methods all_methods{Method::mapped, Method::read, Method::sieved_read, Method::zcopy, Method::packed};

constexpr Offer over(std::string_view transport, Methods methods) {
  return {methods, MemoryKind::host, transport};
}
constexpr Offer everything = over("shm", all_methods);
constexpr Offer messages = over("tcp", {Method::zcopy, Method::packed});
const Offer own = [] {
  Offer offer;
  offer.methods = {Method::local};
  return offer;
}();

// All methods cost the same over every transport, until a test changes the cost of one.
struct FlatCosts : CostModel {
  FlatCosts() {
    for (const char* transport : {"shm", "tcp"}) {
      for (std::size_t method = 0; method < method_count; ++method) {
        set(transport, MemoryKind::host, static_cast<Method>(method), {1e-6, 1e-6, 1e9});
      }
    }
  }
  using CostModel::set;
  void set(std::string_view transport, Method method, const MethodCost& cost) {
    set(transport, MemoryKind::host, method, cost);
  }
  void speed_up(std::string_view transport, Method method, double bytes_per_second) {
    MethodCost cost = at(transport, MemoryKind::host, method);
    cost.bytes_per_second = bytes_per_second;
    set(transport, method, cost);
  }
};

Predictions choose(std::vector<Transfer>& transfers, const std::vector<Offer>& offers, const CostModel& costs,
                   std::optional<Method> forced = std::nullopt) {
  return choose_methods(transfers, offers, costs, forced);
}

Method method_of(Transfer transfer, const Offer& offer, const CostModel& costs,
                 std::optional<Method> forced = std::nullopt) {
  std::vector<Transfer> one{std::move(transfer)};
  choose(one, {offer}, costs, forced);
  return one.front().method;
}

bool is_unsupported(Transfer transfer, const Offer& offer, Method forced) {
  try {
    method_of(std::move(transfer), offer, FlatCosts(), forced);
    return false;
  } catch (const ImpossibleMethod& error) {
    return error.code() == ErrorCode::unsupported && error.forced == forced && error.transfer == 0;
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(runs_are_classed_by_powers_of_four) {
  BOOST_TEST(run_class(0) == 0U);
  BOOST_TEST(run_class(1) == 0U);
  ByteCount first = 256;
  for (std::size_t index = 1; index < run_classes; ++index, first *= 4) {
    BOOST_TEST(run_class(first - 1) == index - 1);
    BOOST_TEST(run_class(first) == index);
  }
  BOOST_TEST(run_class(ByteCount{1} << 40) == run_classes - 1);
  BOOST_TEST(run_class(~ByteCount{0}) == run_classes - 1);
}

BOOST_AUTO_TEST_CASE(the_cheapest_of_those_that_are_possible_is_taken) {
  for (const Method cheap : {Method::mapped, Method::read, Method::zcopy, Method::packed}) {
    FlatCosts costs;
    costs.speed_up("shm", cheap, 1e12);
    BOOST_TEST((method_of(rows_of(0, 100, 100, 0), everything, costs) == cheap));
  }
  FlatCosts costs;
  costs.speed_up("tcp", Method::mapped, 1e12);  // not possible for this transfer
  costs.speed_up("shm", Method::packed, 1e12);  // over another transport
  costs.set("tcp", Method::zcopy, {0, 1e-6, 1e9});
  BOOST_TEST((method_of(rows_of(0, 100, 100, 0), messages, costs) == Method::zcopy));
}

BOOST_AUTO_TEST_CASE(what_lies_in_this_process_is_copied_whatever_is_forced) {
  for (std::size_t method = 0; method < method_count; ++method) {
    BOOST_TEST((method_of(rows_of(0, 4, 4, 0), own, FlatCosts(), static_cast<Method>(method)) == Method::local));
  }
  BOOST_TEST((method_of(rows_of(0, 4, 4, 0), own, FlatCosts()) == Method::local));
}

BOOST_AUTO_TEST_CASE(long_runs_and_short_ones_of_a_peer_are_decided_apart) {
  FlatCosts costs;
  costs.set("tcp", Method::zcopy, {0, 1e-5, 1e10});
  costs.set("tcp", Method::packed, {0, 0, 1e9});
  // Rows of 64 B and rows of 1 MiB: one message per row pays off only for the long ones.
  std::vector<Transfer> transfers{rows_of(0, 1000, 16, 1), rows_of(0, 8, 1 << 18, 1), rows_of(1, 1000, 16, 1)};
  choose(transfers, {messages, messages, messages}, costs);
  BOOST_TEST((transfers[0].method == Method::packed));
  BOOST_TEST((transfers[1].method == Method::zcopy));
  BOOST_TEST((transfers[2].method == Method::packed));
}

BOOST_AUTO_TEST_CASE(transfers_of_one_peer_and_class_go_one_method_and_share_its_latency) {
  FlatCosts costs;
  costs.set("tcp", Method::zcopy, {0.001, 0, 1e9});
  costs.set("tcp", Method::packed, {0, 0, 1e8});
  // 40 kB alone: 0.4 ms packed, more than 1 ms zcopy. Ten of them: 4 ms packed, 1.4 ms zcopy.
  BOOST_TEST((method_of(rows_of(0, 100, 100, 1), messages, costs) == Method::packed));
  std::vector<Transfer> same(10, rows_of(0, 100, 100, 1));
  const Predictions together = choose(same, std::vector<Offer>(10, messages), costs);
  for (const Transfer& transfer : same) BOOST_TEST((transfer.method == Method::zcopy));
  BOOST_TEST(together.methods[static_cast<std::size_t>(Method::zcopy)].seconds == 0.0014,
             boost::test_tools::tolerance(1e-9));
  std::vector<Transfer> separate;
  for (std::uint32_t peer = 0; peer < 10; ++peer) separate.push_back(rows_of(peer, 100, 100, 1));
  choose(separate, std::vector<Offer>(10, messages), costs);
  for (const Transfer& transfer : separate) BOOST_TEST((transfer.method == Method::packed));
}

BOOST_AUTO_TEST_CASE(transfers_that_can_go_other_methods_are_not_held_to_one_decision) {
  FlatCosts costs;
  costs.speed_up("shm", Method::mapped, 1e12);
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 0), rows_of(0, 10, 10, 0)};
  choose(transfers, {everything, over("shm", {Method::packed})}, costs);
  BOOST_TEST((transfers[0].method == Method::mapped));
  BOOST_TEST((transfers[1].method == Method::packed));
}

BOOST_AUTO_TEST_CASE(predictions_add_up_to_the_bytes_and_runs_of_the_transfers) {
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1), rows_of(0, 7, 3, 2, 8), rows_of(2, 5, 4, 0)};
  const Predictions predictions = choose(transfers, {everything, messages, own}, CostModel());
  ByteCount bytes = 0;
  ByteCount runs = 0;
  for (std::size_t method = 0; method < method_count; ++method) {
    const Prediction& one = predictions.methods[method];
    BOOST_TEST((one.seconds > 0) == (one.bytes > 0));
    bytes += one.bytes;
    runs += one.runs;
  }
  BOOST_TEST(bytes == 10U * 10 * 4 + 7U * 3 * 8 + 5U * 4 * 4);
  BOOST_TEST(runs == 10U + 7 + 1);
  BOOST_TEST(predictions.methods[static_cast<std::size_t>(Method::local)].runs == 1U);
}

BOOST_AUTO_TEST_CASE(predicted_seconds_are_those_of_the_model) {
  FlatCosts costs;
  costs.set("tcp", Method::packed, {0.5, 0.25, 400});
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1)};
  const Predictions predictions = choose(transfers, {over("tcp", {Method::packed})}, costs);
  BOOST_TEST(predictions.methods[static_cast<std::size_t>(Method::packed)].seconds == 0.5 + 10 * 0.25 + 1.0);
}

BOOST_AUTO_TEST_CASE(what_mapping_would_have_saved_is_told_where_a_transport_maps_other_memory) {
  FlatCosts costs;
  costs.set("shm", Method::packed, {1, 0, 400});
  costs.set("shm", Method::mapped, {0, 0, 4000});
  costs.set("tcp", Method::packed, {3, 0, 400});
  Offer unmapped = over("shm", {Method::packed});
  unmapped.carrier(Method::mapped) = "shm";
  Offer mixed = over("tcp", {Method::packed});
  mixed.carrier(Method::mapped) = "shm";
  std::vector<Transfer> transfers{rows_of(0, 10, 10, 1), rows_of(1, 10, 10, 1), rows_of(2, 10, 10, 1),
                                  rows_of(3, 10, 10, 1)};
  const Predictions predictions =
      choose(transfers, {unmapped, over("tcp", {Method::packed}), everything, mixed}, costs);
  BOOST_REQUIRE(predictions.unmapped_seconds.size() == 4U);
  BOOST_TEST(predictions.unmapped_seconds[0] == 1.9, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(predictions.unmapped_seconds[1] == 0.0);
  BOOST_TEST(predictions.unmapped_seconds[2] == 0.0);
  BOOST_TEST(predictions.unmapped_seconds[3] == 3.9, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(each_method_costs_what_it_costs_over_its_own_transport) {
  Offer offer;
  offer.add(Method::read, "shm");
  offer.add(Method::zcopy, "tcp");
  offer.add(Method::packed, "tcp");
  FlatCosts costs;
  costs.speed_up("tcp", Method::read, 1e12);   // tcp does not offer it
  costs.speed_up("shm", Method::zcopy, 1e12);  // shm does not offer it
  costs.speed_up("tcp", Method::packed, 2e9);
  BOOST_TEST((method_of(rows_of(0, 100, 100, 1), offer, costs) == Method::packed));
  costs.speed_up("shm", Method::read, 3e9);
  BOOST_TEST((method_of(rows_of(0, 100, 100, 1), offer, costs) == Method::read));
  std::vector<Transfer> transfers{rows_of(0, 100, 100, 1)};
  costs.set("tcp", Method::zcopy, {0.5, 0, 1e5});
  const Predictions predictions = choose(transfers, {offer}, costs, Method::zcopy);
  BOOST_TEST(predictions.methods[static_cast<std::size_t>(Method::zcopy)].seconds == 0.9,
             boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(transfers_over_other_transports_or_in_other_memory_are_decided_apart) {
  FlatCosts costs;
  costs.speed_up("tcp", Method::zcopy, 1e12);
  costs.speed_up("shm", Method::packed, 1e12);
  costs.set("tcp", MemoryKind::cuda, Method::zcopy, {1, 1, 1});
  const Methods both{Method::zcopy, Method::packed};
  Offer mixed;
  mixed.add(Method::zcopy, "shm");
  mixed.add(Method::packed, "tcp");
  costs.set("shm", Method::zcopy, {5e-7, 1e-6, 1e9});
  std::vector<Transfer> transfers(4, rows_of(0, 100, 100, 1));
  // The same bytes, peer and methods each time: if they were decided together, all would use the same method.
  choose(transfers, {over("tcp", both), over("shm", both), {both, MemoryKind::cuda, "tcp"}, mixed}, costs);
  BOOST_TEST((transfers[0].method == Method::zcopy));
  BOOST_TEST((transfers[1].method == Method::packed));
  BOOST_TEST((transfers[2].method == Method::packed));
  BOOST_TEST((transfers[3].method == Method::zcopy));
}

BOOST_AUTO_TEST_CASE(built_in_costs_take_lists_of_runs_over_tcp_and_messages_of_one_run_for_long_ones_only) {
  // Rows of 512 B, with gaps.
  BOOST_TEST((method_of(rows_of(0, 1000, 128, 1), messages, CostModel()) == Method::zcopy));
  const Offer one_by_one = over("ucx", {Method::zcopy, Method::packed});
  BOOST_TEST((method_of(rows_of(0, 1000, 128, 1), one_by_one, CostModel()) == Method::packed));
  BOOST_TEST((method_of(rows_of(0, 8, 1 << 18, 1), one_by_one, CostModel()) == Method::zcopy));
}

// Rows of 1 KiB, with gaps: the kernel reads them at a cost for each, and messages collect them.
BOOST_AUTO_TEST_CASE(built_in_costs_read_instead_where_messages_are_encrypted) {
  Offer offer = over("shm", {Method::read});
  offer.add(Method::zcopy, "tcp");
  BOOST_TEST((method_of(rows_of(0, 1000, 256, 1), offer, CostModel()) == Method::zcopy));
  offer.add(Method::zcopy, "tcp_encrypted");
  BOOST_TEST((method_of(rows_of(0, 1000, 256, 1), offer, CostModel()) == Method::read));
}

BOOST_AUTO_TEST_CASE(gaps_are_read_only_where_that_wins) {
  FlatCosts costs;
  const Offer reads = over("shm", {Method::read, Method::sieved_read});
  costs.set("shm", Method::read, {0, 1e-6, 1e9});
  costs.set("shm", Method::sieved_read, {0, 0, 1e9});
  BOOST_TEST((method_of(rows_of(0, 1000, 16, 8), reads, costs) == Method::sieved_read));
  costs.speed_up("shm", Method::sieved_read, 1e7);
  BOOST_TEST((method_of(rows_of(0, 1000, 16, 8), reads, costs) == Method::read));
}

BOOST_AUTO_TEST_CASE(gaps_are_never_read_beyond_double_nor_where_there_are_none) {
  FlatCosts costs;
  const Offer reads = over("shm", {Method::read, Method::sieved_read});
  for (const Method method : {Method::read, Method::zcopy, Method::packed}) costs.set("shm", method, {1, 1, 1});
  costs.set("shm", Method::sieved_read, {0, 0, 1e15});
  // 100 rows of 16: hull 100 * (16 + gap) - gap elements.
  BOOST_TEST((method_of(rows_of(0, 100, 16, 16), reads, costs) == Method::sieved_read));
  BOOST_TEST((method_of(rows_of(0, 100, 16, 17), reads, costs) == Method::read));
  BOOST_TEST((method_of(rows_of(0, 100, 16, 0), reads, costs) == Method::read));
  BOOST_TEST((method_of(rows_of(0, 100, 16, 17), reads, costs, Method::sieved_read) == Method::read));
  BOOST_TEST((method_of(rows_of(0, 100, 16, 16), reads, costs, Method::sieved_read) == Method::sieved_read));
}

BOOST_AUTO_TEST_CASE(a_forced_method_is_taken_however_dear_it_is) {
  for (const Method forced : {Method::mapped, Method::read, Method::sieved_read, Method::zcopy, Method::packed}) {
    FlatCosts costs;
    costs.set("shm", forced, {1e9, 1e9, 1e-9});
    BOOST_TEST((method_of(rows_of(0, 100, 100, 1), everything, costs, forced) == forced));
    BOOST_TEST((method_of(rows_of(0, 100, 100, 1), everything, costs) != forced));
  }
}

BOOST_AUTO_TEST_CASE(a_forced_method_that_is_not_possible_is_unsupported) {
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), everything, Method::local));
  for (const Method forced : {Method::mapped, Method::read, Method::sieved_read}) {
    BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), messages, forced));
  }
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), over("shm", {Method::mapped}), Method::packed));
  BOOST_TEST(is_unsupported(rows_of(0, 4, 4, 1), over("tcp", {Method::packed}), Method::zcopy));
}

BOOST_AUTO_TEST_CASE(what_is_expected_of_a_peer_has_the_latency_of_a_method_once) {
  FlatCosts costs;
  costs.set("tcp", Method::packed, {0.5, 0, 4000});
  costs.set("tcp", Method::sieved_read, {0.25, 0, 4000});
  // Two classes of run length, which are decided separately.
  std::vector<Transfer> transfers{rows_of(1, 10, 100, 1), rows_of(1, 10, 1000, 1), rows_of(2, 10, 100, 100)};
  const Offer packed = over("tcp", {Method::packed});
  const Predictions predictions = choose(transfers, {packed, packed, over("tcp", {Method::sieved_read})}, costs);
  BOOST_REQUIRE(predictions.peers.size() == 3U);
  const Prediction& of_peer = predictions.peers[1][static_cast<std::size_t>(Method::packed)];
  BOOST_TEST(of_peer.bytes == 44'000U);
  BOOST_TEST(of_peer.runs == 20U);
  BOOST_TEST(of_peer.seconds == 11.5, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(predictions.methods[static_cast<std::size_t>(Method::packed)].seconds == 12.0,
             boost::test_tools::tolerance(1e-9));
  const Prediction& with_gaps = predictions.peers[2][static_cast<std::size_t>(Method::sieved_read)];
  BOOST_TEST(with_gaps.bytes == (10 * 200 - 100) * 4U);
  BOOST_TEST(with_gaps.seconds == 0.25 + 1.9, boost::test_tools::tolerance(1e-9));
  for (const Prediction& none : predictions.peers[0]) BOOST_TEST((none.bytes == 0 && none.seconds == 0));
}

BOOST_AUTO_TEST_CASE(devices_limit_what_nobody_has_measured) {
  Offer offer(Methods{Method::mapped, Method::packed}, MemoryKind::cuda, "shm");
  const auto limit = [&](Method method, double bytes_per_second) {
    offer.limits[static_cast<std::size_t>(method)] = bytes_per_second;
  };
  const Transfer large = rows_of(0, 1000, 1 << 20, 0);
  BOOST_TEST((method_of(large, offer, CostModel()) == Method::mapped));
  limit(Method::mapped, device_limit(0, 0, 3e12));
  std::vector<Transfer> transfers{large};
  double seconds = choose(transfers, {offer}, CostModel()).methods[static_cast<std::size_t>(Method::mapped)].seconds;
  BOOST_TEST(seconds > 4e9 * 1.048 / 1e12);  // the model adds its own overhead
  limit(Method::mapped, device_limit(0, 0, 1e12));
  seconds = choose(transfers, {offer}, CostModel()).methods[static_cast<std::size_t>(Method::mapped)].seconds;
  BOOST_TEST(seconds > 4e9 * 1.048 / 0.5e12);
  BOOST_TEST(seconds < 4e9 * 1.06 / 0.5e12);
  limit(Method::mapped, 1e6);  // a device that is slower than the host
  BOOST_TEST((method_of(large, offer, CostModel()) == Method::packed));
  CostModel measured;
  measured.set("shm", MemoryKind::cuda, Method::mapped, {1e-6, 0, 300e9});
  BOOST_TEST((method_of(large, offer, measured) == Method::mapped));
  // Other memory than the device's own is limited by the bus.
  BOOST_TEST(device_limit(0, 1, 3e12) == bus_bytes_per_second);
  BOOST_TEST(device_limit(-1, 1, 3e12) == bus_bytes_per_second);
  BOOST_TEST(device_limit(1, 1, 0) == 0);
}

BOOST_AUTO_TEST_CASE(nothing_to_move_is_nothing_to_decide) {
  std::vector<Transfer> none;
  const Predictions predictions = choose(none, {}, CostModel(), Method::read);
  for (const Prediction& one : predictions.methods) BOOST_TEST((one.bytes == 0 && one.seconds == 0));
  BOOST_TEST(predictions.unmapped_seconds.empty());
}

BOOST_AUTO_TEST_SUITE_END()
