// SPDX-License-Identifier: Apache-2.0
// Sizes of slots, and the number of requests in flight per peer.
#include <boost/test/unit_test.hpp>

#include "move/messages.hpp"
#include "move/sizing.hpp"
#include "move/tuning.hpp"

BOOST_AUTO_TEST_SUITE(sizing)

using namespace shardwire;
using namespace shardwire::move;

namespace {

void set_network(CostModel& costs, const char* transport, double latency_seconds, double bytes_per_second) {
  for (const Method method : {Method::packed, Method::zcopy}) {
    MethodCost cost = costs.at(transport, MemoryKind::host, method);
    cost.latency_seconds = latency_seconds;
    cost.bytes_per_second = bytes_per_second;
    costs.set(transport, MemoryKind::host, method, cost);
  }
}

// A network with this latency and bandwidth, over any transport.
CostModel network(double latency_seconds, double bytes_per_second) {
  CostModel costs;
  for (const char* transport : {"tcp", "ucx", "libfabric"}) {
    set_network(costs, transport, latency_seconds, bytes_per_second);
  }
  return costs;
}

Depths depths_of(const CostModel& costs) {
  return depths_for(costs, slot_bytes_for(costs), zcopy_message_bytes);
}

}  // namespace

BOOST_AUTO_TEST_CASE(slots_hold_eight_round_trips_within_bounds) {
  BOOST_TEST(slot_bytes_for(network(1e-6, 1e9)) == 256u << 10);
  BOOST_TEST(slot_bytes_for(network(20e-6, 12.5e9)) == 2u << 20);
  BOOST_TEST(slot_bytes_for(network(5e-3, 50e9)) == 4u << 20);
}

BOOST_AUTO_TEST_CASE(the_transport_that_needs_most_counts) {
  for (const char* transport : {"tcp", "ucx", "libfabric"}) {
    CostModel costs = network(1e-6, 1e9);
    set_network(costs, transport, 20e-6, 12.5e9);
    BOOST_TEST(slot_bytes_for(costs) == 2u << 20);
    set_network(costs, transport, 2e-3, 10e9);
    BOOST_TEST(depths_of(costs).packed == 5 + 3);
    BOOST_TEST(depths_of(costs).zcopy == 5 + 1);
  }
  CostModel within_host = network(1e-6, 1e9);
  set_network(within_host, "shm", 5e-3, 50e9);  // has no messages
  BOOST_TEST(slot_bytes_for(within_host) == 256u << 10);
}

BOOST_AUTO_TEST_CASE(what_a_round_trip_holds_is_in_flight_and_one_request_for_each_stage) {
  const MethodCost cost{.latency_seconds = 1e-3, .bytes_per_second = 10e9};  // 10 MB in flight
  BOOST_TEST(requests_in_flight(cost, 4'000'000, 3) == 3 + 3);
  BOOST_TEST(requests_in_flight(cost, 10'000'000, 3) == 1 + 3);
  BOOST_TEST(requests_in_flight(cost, 10'000'001, 1) == 1 + 1);
}

BOOST_AUTO_TEST_CASE(depth_is_bounded_and_never_none) {
  BOOST_TEST(requests_in_flight({.latency_seconds = 1, .bytes_per_second = 50e9}, 4096, 3) == 16);
  BOOST_TEST(requests_in_flight({}, 4096, 0) == 1);
}

BOOST_AUTO_TEST_CASE(built_in_costs_overlap_stages_and_hide_the_round_trip) {
  BOOST_TEST(depths_of(CostModel()).packed == 4);
  BOOST_TEST(depths_of(CostModel()).zcopy == 2);
}

BOOST_AUTO_TEST_CASE(a_long_way_and_small_requests_take_more_of_them) {
  BOOST_TEST(depths_of(CostModel()).gathered == 2 + 1);  // 300 kB in flight
  CostModel far = network(2e-3, 1e9);                    // 2 MB in flight
  BOOST_TEST(depths_of(far).gathered == 8 + 1);
  far.set_tuning({.tcp = {.request_bytes = 1u << 20, .streams = 1}});
  BOOST_TEST(depths_of(far).gathered == 2 + 1);
}

BOOST_AUTO_TEST_CASE(a_long_way_and_small_slots_take_more_requests) {
  const CostModel far = network(2e-3, 10e9);  // 20 MB in flight
  BOOST_TEST(depths_of(far).packed == 5 + 3);
  BOOST_TEST(depths_of(far).zcopy == 5 + 1);
  BOOST_TEST(depths_for(CostModel(), 4096, zcopy_message_bytes).packed > depths_of(CostModel()).packed);
}

BOOST_AUTO_TEST_SUITE_END()
