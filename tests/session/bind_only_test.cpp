// SPDX-License-Identifier: Apache-2.0
// Restores that only report how bytes would move.
#include <boost/test/unit_test.hpp>

#include <cstdlib>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(bind_only)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

TensorSpec spec() {
  return {{"w", "exp_avg"}, DType::f32, {1000, 300}};
}
TensorSpec single() {
  return {{"step", ""}, DType::i64, {1}};
}

/// Both members hold rows; member 1 wants columns.
struct Pair {
  std::uint16_t port = free_port();
  std::vector<Session> sessions;
  std::vector<TestShard> held;
  std::vector<Publication> publications;
  TestShard wanted{spec(), Layout::chunk(1, 2), Rank{1}};
  TestShard one{single(), Layout::replicated(), Rank{1}};

  Pair() {
    for (const int rank : {0, 1}) sessions.push_back(Session::join(member(rank, 2, port), quick()));
    for (const int rank : {0, 1}) held.emplace_back(spec(), Layout::chunk(0, 2), Rank{rank});
    for (const int rank : {0, 1}) publish(rank, 1);
  }
  void publish(int rank, std::uint64_t seed) {
    const auto index = static_cast<std::size_t>(rank);
    held[index].fill(seed);
    Catalog catalog(Rank{rank}, 2);
    held[index].add_to(catalog);
    TestShard source(single(), Layout::replicated(), Rank{rank});
    source.fill(seed);
    source.add_to(catalog);
    publications.push_back(sessions[index].publish(catalog));
  }
  Restore restore(RestoreOptions options, bool bind_only) {
    Catalog target(Rank{1}, 2);
    wanted.add_to(target);
    one.add_to(target);
    options.bind_only = bind_only;
    return sessions[1].restore(target, options);
  }
  [[nodiscard]] bool untouched() {
    const auto untouched = [](TestShard& shard) {
      return std::all_of(shard.data(), shard.data() + shard.size_bytes(),
                         [](std::byte b) { return b == std::byte{0xee}; });
    };
    return untouched(wanted) && untouched(one);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(what_would_be_done_is_said_and_nothing_is_written) {
  Pair pair;
  Restore bound = pair.restore(within(patience), true);
  bound.wait();
  BOOST_TEST(pair.untouched());
  const RestoreReport& expected = bound.report();
  BOOST_TEST(expected.needed_bytes == pair.wanted.size_bytes());
  BOOST_TEST(expected.moved_bytes + expected.local_bytes + expected.overread_bytes + expected.resent_bytes == 0U);
  BOOST_TEST(expected.seconds.move + expected.seconds.commit == 0);
  BOOST_TEST(expected.staging_peak_bytes == 0U);
  BOOST_REQUIRE(expected.peers.size() == 2U);
  for (const PeerReport& peer : expected.peers) {
    BOOST_TEST(peer.bytes >= pair.wanted.size_bytes() / 2);  // more if a sieved read includes gaps
    BOOST_TEST(peer.predicted_seconds > 0);
    BOOST_TEST(peer.measured_seconds == 0);
    BOOST_TEST(!peer.device.empty());
  }
  BOOST_TEST(expected.peers[1].path == "local");

  // The restore that follows moves bytes as predicted.
  Restore moved = pair.restore(within(patience), false);
  moved.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  BOOST_TEST(pair.one.wrong(1) == 0U);
  const RestoreReport& done = moved.report();
  BOOST_TEST(done.moved_bytes + done.local_bytes == done.needed_bytes + done.overread_bytes);
  BOOST_REQUIRE(done.peers.size() == 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    BOOST_TEST(done.peers[i].path == expected.peers[i].path);
    BOOST_TEST(done.peers[i].device == expected.peers[i].device);
    BOOST_TEST(done.peers[i].fallback_detail == expected.peers[i].fallback_detail);
    BOOST_TEST(done.peers[i].bytes == expected.peers[i].bytes);
    BOOST_TEST(done.peers[i].predicted_seconds == expected.peers[i].predicted_seconds);
    BOOST_TEST(done.peers[i].measured_seconds > 0);
  }
  done.methods.each([&](Method method, const MethodReport& row) {
    BOOST_TEST(row.bytes == expected.methods[method].bytes);
    BOOST_TEST(row.runs == expected.methods[method].runs);
    BOOST_TEST(expected.methods[method].measured_seconds == 0);
  });
}

BOOST_AUTO_TEST_CASE(it_says_the_same_after_a_restore_and_holds_no_lease_afterwards) {
  Pair pair;
  pair.restore(within(patience), false).wait();
  Restore again = pair.restore(within(patience), true);
  again.wait();
  BOOST_TEST(again.report().needed_bytes == pair.wanted.size_bytes());
  BOOST_TEST(again.report().peers.size() == 2U);
  for (Publication& publication : pair.publications) publication.retire(0s);  // throws if a reader is left
  pair.publications.clear();
  const auto next = static_cast<std::uint64_t>(2);
  for (const int rank : {0, 1}) pair.publish(rank, next);
  pair.restore(within(patience), true).wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);  // still the values of the first publication
  pair.restore(within(patience), false).wait();
  BOOST_TEST(pair.wanted.wrong(next) == 0U);
}

BOOST_AUTO_TEST_CASE(a_method_that_is_not_possible_is_refused_as_in_a_restore) {
  Pair pair;
  RestoreOptions options = within(patience);
  options.method = RestoreMethod::mapped;  // the memory is in no arena
  Restore bound = pair.restore(options, true);
  const Error error = failure_of([&] { bound.wait(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported));
  BOOST_TEST(pair.untouched());
}

BOOST_AUTO_TEST_CASE(a_method_of_exchanges_that_the_environment_names_is_refused_by_restores) {
  Pair pair;
  ::setenv("SHARDWIRE_METHOD", "collective", 1);
  Restore bound = pair.restore(within(patience), true);
  ::unsetenv("SHARDWIRE_METHOD");
  const Error error = failure_of([&] { bound.wait(); });
  BOOST_TEST((error.code() == ErrorCode::unsupported));
  BOOST_TEST(says(error, "the method 'collective', which the caller has chosen"), error.what());
}

BOOST_AUTO_TEST_SUITE_END()
