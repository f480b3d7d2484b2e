// SPDX-License-Identifier: Apache-2.0
// Predicted times: computed by hand for few flows, and invariants for any flows.
#include "plan/fabric_model.hpp"

#include <boost/test/unit_test.hpp>
#include <random>

#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(fabric_model)

namespace {

using namespace shardwire;

Flow flow(int source, int target, ByteCount bytes) {
  return {Rank{source}, Rank{target}, bytes};
}

// Copies at 1000 B/s, 500 B/s within a host, one network link of 100 B/s; latencies 0.25, 0.5 and 1 s.
ClusterModel slow() {
  ClusterModel fabric;
  fabric.copy = {0.25, 1000};
  fabric.host = {0.5, 500};
  fabric.network_latency_seconds = 1;
  fabric.nics = {100};
  return fabric;
}

const FabricLink& link(const RestorePrediction& prediction, LinkKind kind, int owner, int index = 0) {
  for (const FabricLink& one : prediction.links) {
    if (one.kind == kind && one.owner == owner && one.index == index) return one;
  }
  throw std::runtime_error("no such link");
}

void check_times(const RestorePrediction& prediction, double seconds, double bound) {
  BOOST_CHECK_CLOSE_FRACTION(prediction.seconds, seconds, 1e-9);
  BOOST_CHECK_CLOSE_FRACTION(prediction.bound_seconds, bound, 1e-9);
}

}  // namespace

BOOST_AUTO_TEST_CASE(nothing_to_move_takes_no_time) {
  const RestorePrediction none = predict(slow(), 1, {});
  BOOST_TEST(none.seconds == 0);
  BOOST_TEST(none.bound_seconds == 0);
  BOOST_TEST(none.links.empty());
  BOOST_TEST(predict(slow(), 1, std::vector<Flow>{flow(0, 1, 0)}).seconds == 0);
}

BOOST_AUTO_TEST_CASE(one_flow_takes_its_latency_and_its_bytes) {
  const RestorePrediction prediction = predict(slow(), 1, std::vector<Flow>{flow(0, 1, 200)});
  check_times(prediction, 3, 3);
  BOOST_TEST(prediction.hosts == 2);
  BOOST_TEST(prediction.between_hosts == 200U);
  BOOST_TEST(link(prediction, LinkKind::nic_out, 0).bytes == 200U);
  BOOST_CHECK_CLOSE_FRACTION(link(prediction, LinkKind::nic_in, 1).utilisation, 2.0 / 3, 1e-9);
}

BOOST_AUTO_TEST_CASE(tiny_flows_take_their_latency) {
  const RestorePrediction prediction =
      predict(slow(), 2, std::vector<Flow>{flow(0, 3, 1), flow(0, 0, 1), flow(0, 1, 1)});
  check_times(prediction, 1.01, 1.01);
}

BOOST_AUTO_TEST_CASE(two_flows_share_the_link_out) {
  check_times(predict(slow(), 1, std::vector<Flow>{flow(0, 1, 100), flow(0, 2, 100)}), 3, 3);
  // 100 bytes each at 50 B/s until 3 s, then the rest of the second flow at full speed.
  check_times(predict(slow(), 1, std::vector<Flow>{flow(0, 1, 100), flow(0, 2, 300)}), 5, 5);
}

BOOST_AUTO_TEST_CASE(many_sources_into_one_target_share_its_link) {
  std::vector<Flow> flows;
  for (int s = 1; s <= 10; ++s) flows.push_back(flow(s, 0, 100));
  const RestorePrediction prediction = predict(slow(), 1, flows);
  check_times(prediction, 11, 11);
  BOOST_TEST((prediction.links.front().kind == LinkKind::nic_in));
  BOOST_CHECK_CLOSE_FRACTION(link(prediction, LinkKind::nic_out, 3).utilisation, 1.0 / 11, 1e-9);
}

BOOST_AUTO_TEST_CASE(a_flow_takes_what_others_leave) {
  // Into 9 two flows at 50 B/s until 3 s after the start; 1 -> 8 has the other 50 B/s of the link out of 1 until then,
  // and all of it for its last 150 bytes.
  check_times(predict(slow(), 1, std::vector<Flow>{flow(0, 9, 150), flow(1, 9, 150), flow(1, 8, 300)}), 5.5, 5.5);
  // Thirds into 2 leave two thirds of the link out of 0 to 0 -> 1.
  check_times(predict(slow(), 1, std::vector<Flow>{flow(0, 1, 300), flow(0, 2, 100), flow(3, 2, 100), flow(4, 2, 100)}),
              5, 5);
}

BOOST_AUTO_TEST_CASE(a_busy_link_that_has_to_wait_makes_more_than_the_bound) {
  // Quarters into 8 and 9 leave half of the link out of 0 idle for 3 s, until the small flows have ended; then 0 has 150
  // bytes left for each, at 50 B/s.
  std::vector<Flow> flows = {flow(0, 8, 225), flow(0, 9, 225)};
  for (int s = 1; s <= 3; ++s) flows.insert(flows.end(), {flow(s, 8, 75), flow(s + 3, 9, 75)});
  const RestorePrediction prediction = predict(slow(), 1, flows);
  check_times(prediction, 7, 5.5);
  BOOST_CHECK_CLOSE_FRACTION(link(prediction, LinkKind::nic_out, 0).utilisation, 4.5 / 7, 1e-9);
}

BOOST_AUTO_TEST_CASE(where_ranks_are_decides_which_links_their_flows_take) {
  // Four ranks per host: a copy, a neighbour, another host.
  const std::vector<Flow> flows = {flow(1, 1, 3000), flow(1, 2, 500), flow(1, 4, 100)};
  const RestorePrediction prediction = predict(slow(), 4, flows);
  check_times(prediction, 3.25, 3.25);
  BOOST_TEST(prediction.hosts == 2);
  BOOST_TEST(prediction.copied == 3000U);
  BOOST_TEST(prediction.within_hosts == 500U);
  BOOST_TEST(prediction.between_hosts == 100U);
  BOOST_TEST(link(prediction, LinkKind::copy, 1).bytes == 3000U);
  BOOST_TEST(link(prediction, LinkKind::host_out, 1).bytes == 500U);
  BOOST_TEST(link(prediction, LinkKind::host_in, 2).bytes == 500U);
  BOOST_TEST(link(prediction, LinkKind::nic_out, 0).bytes == 100U);
  BOOST_TEST(link(prediction, LinkKind::nic_in, 1).bytes == 100U);
  BOOST_TEST(prediction.links.size() == 5U);
  BOOST_REQUIRE(prediction.host_flows.size() == 2U);
  BOOST_TEST(prediction.host_flows[0].bytes == 3500U);
  BOOST_TEST(prediction.host_flows[1].target == 1);
  // The same target ranks in other processes: 1 on its source's host, 2 on the other host, 4 in the source's process.
  const std::vector<std::int32_t> processes = {0, 2, 5, 3, 1};
  const RestorePrediction moved = predict(slow(), 4, flows, processes);
  BOOST_TEST(moved.within_hosts == 3000U);
  BOOST_TEST(moved.between_hosts == 500U);
  BOOST_TEST(moved.copied == 100U);
}

BOOST_AUTO_TEST_CASE(ranks_of_a_host_share_its_links) {
  ClusterModel fabric = slow();
  const std::vector<Flow> flows = {flow(0, 4, 100), flow(1, 5, 100), flow(2, 6, 100), flow(3, 7, 100)};
  check_times(predict(fabric, 4, flows), 5, 5);
  fabric.nics = {100, 50};  // ranks 0 and 2 of a host use the first, 1 and 3 the second
  check_times(predict(fabric, 4, flows), 5, 5);
  fabric.nics = {100, 100, 100, 100};
  check_times(predict(fabric, 4, flows), 2, 2);
  fabric.oversubscription = 4;  // the core carries 2 hosts x 400 B/s / 4
  const RestorePrediction prediction = predict(fabric, 4, flows);
  check_times(prediction, 3, 3);
  BOOST_TEST((prediction.links.front().kind == LinkKind::core));
}

BOOST_AUTO_TEST_CASE(a_host_may_have_a_limit_of_its_own) {
  ClusterModel fabric = slow();
  const std::vector<Flow> flows = {flow(0, 1, 500), flow(2, 3, 500)};
  check_times(predict(fabric, 4, flows), 1.5, 1.5);
  fabric.host_total = 500;
  check_times(predict(fabric, 4, flows), 2.5, 2.5);
}

BOOST_AUTO_TEST_CASE(random_flows_keep_their_bytes_and_the_bound) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < test::rounds(300); ++round) {
    const int ranks = 2 + static_cast<int>(random() % 30);
    const int per_host = 1 + static_cast<int>(random() % 5);
    ClusterModel fabric = slow();
    fabric.nics.assign(1 + random() % 3, 100);
    fabric.nics.back() = static_cast<double>(50 + random() % 200);
    if (random() % 2 == 0) fabric.oversubscription = 1 + static_cast<double>(random() % 30) / 10;
    if (random() % 2 == 0) fabric.host_total = 700;
    std::vector<Flow> flows;
    ByteCount bytes = 0;
    for (std::size_t i = random() % 200; i-- > 0;) {
      const auto rank = [&] { return static_cast<int>(random() % static_cast<unsigned>(ranks)); };
      flows.push_back(flow(rank(), rank(), random() % 3 == 0 ? 100 : 1 + random() % 1000));
      bytes += flows.back().bytes;
    }
    const RestorePrediction exact = predict(fabric, per_host, flows);
    BOOST_TEST(exact.resolution_seconds == 0);
    BOOST_TEST(exact.copied + exact.within_hosts + exact.between_hosts == bytes);
    ByteCount between = 0;
    for (const HostFlow& one : exact.host_flows) between += one.source == one.target ? 0 : one.bytes;
    BOOST_TEST(between == exact.between_hosts);
    ByteCount out = 0;
    ByteCount in = 0;
    for (const FabricLink& one : exact.links) {
      BOOST_TEST((one.utilisation > 0 && one.utilisation <= 1 + 1e-9));
      if (one.kind == LinkKind::nic_out) out += one.bytes;
      if (one.kind == LinkKind::nic_in) in += one.bytes;
    }
    BOOST_TEST(out == exact.between_hosts);
    BOOST_TEST(in == exact.between_hosts);
    BOOST_TEST(exact.seconds >= exact.bound_seconds);
    // Each change of shares ends a flow or begins those of a class.
    BOOST_TEST(exact.steps <= flows.size() + 3);
    // Each of at most 200 ends is late by at most 1/2000 of the bound.
    const RestorePrediction rounded = predict(fabric, per_host, flows, {}, 0);
    BOOST_TEST(rounded.seconds >= rounded.bound_seconds);
    BOOST_TEST(rounded.bound_seconds == exact.bound_seconds);
    BOOST_TEST(std::abs(rounded.seconds - exact.seconds) <= 0.15 * exact.seconds);
  }
}

BOOST_AUTO_TEST_CASE(a_dense_exchange_is_rounded_to_a_bounded_number_of_steps) {
  std::mt19937_64 random(test_seed() + 1);
  std::vector<Flow> flows;
  for (int s = 0; s < 200; ++s) {
    for (int t = 0; t < 200; ++t) flows.push_back(flow(s, t, 1 + random() % 1'000'000));
  }
  const RestorePrediction prediction = predict(slow(), 8, flows);
  BOOST_TEST(prediction.resolution_seconds > 0);
  BOOST_TEST(prediction.seconds >= prediction.bound_seconds);
  BOOST_TEST(static_cast<double>(prediction.steps) <= prediction.seconds / prediction.resolution_seconds + 4);
}

BOOST_AUTO_TEST_SUITE_END()
