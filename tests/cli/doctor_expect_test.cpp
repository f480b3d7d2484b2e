// SPDX-License-Identifier: Apache-2.0
// Paths compared with --expect, from results of ranks.
#include "cli/doctor_expect.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "cli/command.hpp"

BOOST_AUTO_TEST_SUITE(doctor_expect)

namespace {

using namespace shardwire;
using namespace shardwire::cli;

constexpr ByteCount giga = 1'000'000'000;

PeerReport from(int rank, const char* path, ByteCount bytes, double seconds) {
  PeerReport peer;
  peer.rank = Rank{rank};
  peer.path = path;
  peer.device = "a device";
  peer.bytes = bytes;
  peer.measured_seconds = seconds;
  return peer;
}

std::vector<MemberResult> target(std::vector<PeerReport> peers) {
  std::vector<MemberResult> results(1);
  results[0].target = Rank{0};
  results[0].report.peers = std::move(peers);
  return results;
}

// "about subject says" of each flag.
std::vector<std::string> said(const char* expected, std::vector<PeerReport> peers) {
  std::vector<std::string> all;
  for (const perf::Flag& flag : unmet(parse_expectation(expected), target(std::move(peers)))) {
    all.push_back(flag.about + " " + flag.subject + " " + flag.says);
  }
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_pair_that_is_slower_or_faster_is_named_with_both_speeds) {
  const std::vector<PeerReport> peers{from(0, "local", giga, 100), from(1, "ucx/read", 6 * giga, 1),
                                      from(2, "ucx/read", 6 * giga, 2), from(3, "ucx/read", 6 * giga, 0.1)};
  const std::vector<std::string> expected{
      "below floor target 0 <- source 2 moved 6.00 GB at 3.00 GB/s by ucx/read (a device), expected are at least 4.00 "
      "GB/s",
      "above ceiling target 0 <- source 3 moved 6.00 GB at 60.0 GB/s by ucx/read (a device), expected are at most 50.0 "
      "GB/s: the bytes took another way, or are too few to measure"};
  BOOST_TEST(said("floor=4,ceiling=50", peers) == expected, boost::test_tools::per_element());
  BOOST_TEST(said("floor=2.5", peers).empty());
  BOOST_TEST(said("ceiling=60.5", peers).empty());
}

BOOST_AUTO_TEST_CASE(paths_of_a_pair_work_together) {
  const std::vector<PeerReport> peers{from(1, "ucx/read", 4 * giga, 1), from(1, "ucx/packed", 1000, 1)};
  BOOST_TEST(said("floor=4,ceiling=5,transport=tcp", peers).size() == 2);
  BOOST_TEST(said("floor=4,ceiling=5", peers).empty());
  BOOST_TEST(said("floor=5", peers).size() == 1);
}

BOOST_AUTO_TEST_CASE(a_path_over_another_transport_is_named_with_the_reason) {
  PeerReport other = from(1, "tcp/packed", giga, 0);  // none of it has moved
  other.fallback_detail = "shm: it is on another host";
  BOOST_TEST(said("transport=shm", {other, from(2, "shm/mapped", giga, 0)}) ==
                 std::vector<std::string>{"transport target 0 <- source 1 is over tcp/packed (a device), expected is "
                                          "shm: shm: it is on another host"},
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ranks_of_one_host_need_no_transport_between_hosts) {
  const std::vector<PeerReport> peers{from(1, "shm/mapped", 100 * giga, 1), from(2, "tcp/packed", giga, 1)};
  BOOST_TEST(said("ceiling=50,transport=tcp", peers).empty());
  BOOST_TEST(said("ceiling=50", peers).size() == 1);
  BOOST_TEST(said("transport=shm", peers).size() == 1);
  const std::vector<std::string> none = said("transport=tcp", {peers[0]});
  BOOST_REQUIRE(none.size() == 1);
  BOOST_TEST(none[0].starts_with("no path the case"), none[0]);
}

BOOST_AUTO_TEST_CASE(a_case_of_which_nothing_crosses_does_not_pass) {
  BOOST_TEST(said("floor=1", {from(0, "local", giga, 1)}).size() == 1);
}

BOOST_AUTO_TEST_CASE(a_pair_of_which_nothing_was_measured_is_below_the_floor) {
  BOOST_TEST(said("floor=1", {from(1, "tcp/packed", giga, 0)}).size() == 1);
}

BOOST_DATA_TEST_CASE(other_words_are_bad_usage,
                     boost::unit_test::data::make({"", "floor", "floor=", "floor=0", "floor=-1", "floor=1GB",
                                                   "floor=inf", "fllor=1", "floor=2,ceiling=1", "floor=1,",
                                                   "transport=", "transport=bogus"}),
                     sample) {
  BOOST_CHECK_THROW(parse_expectation(sample), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
