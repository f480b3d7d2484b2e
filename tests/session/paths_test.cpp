// SPDX-License-Identifier: Apache-2.0
// A session's report of the paths to the members that publish.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "simulation/scenario.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(paths)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;
using shardwire::simulation::Stopped;

namespace {

std::vector<std::string> names_of(const MemoryPaths& paths) {
  std::vector<std::string> names;
  for (const TransportPath& one : paths.transports) names.push_back(one.transport);
  return names;
}

std::vector<std::string> fabrics_under_test() {
  const std::string names = transport_under_test();
  if (names == "shm,tcp") return {"shm", "tcp"};
  return {names};
}

/// Three members, each with a third of one tensor; their layout ranks are in reverse order.
struct Job {
  std::uint16_t port = free_port();
  std::vector<std::optional<Session>> sessions;
  std::vector<TestShard> held;
  std::vector<Publication> publications;

  Job() {
    for (const int rank : {0, 1, 2}) {
      sessions.push_back(Session::join(member(rank, 3, port), quick()));
      held.emplace_back(TensorSpec{{"w", "m"}, DType::f32, {600}}, Layout::chunk(0, 3), Rank{2 - rank});
    }
  }
  void publish(int rank) {
    const auto index = static_cast<std::size_t>(rank);
    held[index].fill(1);
    Catalog catalog(Rank{2 - rank}, 3);
    held[index].add_to(catalog);
    publications.push_back(sessions[index]->publish(catalog));
  }
  std::vector<PeerPath> paths(int rank, const std::string& from = "state", Duration timeout = 20s) {
    return sessions[static_cast<std::size_t>(rank)]->paths(from, timeout);
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(nobody_publishes) {
  Job job;
  for (const int rank : {0, 1}) BOOST_TEST(job.paths(rank).empty());
  job.publish(0);
  BOOST_TEST(job.paths(1, "another name").empty());
}

BOOST_AUTO_TEST_CASE(everybody_who_publishes_is_there_with_what_each_fabric_can_do) {
  Job job;
  for (const int rank : {0, 1, 2}) job.publish(rank);
  std::vector<PeerPath> found;
  BOOST_REQUIRE(run_until([] {}, [&] { return (found = job.paths(1)).size() == 3; }, patience));
  for (int rank = 0; rank < 3; ++rank) {  // layout rank
    const PeerPath& peer = found[static_cast<std::size_t>(rank)];
    BOOST_TEST(to_int(peer.rank) == rank);
    BOOST_TEST(peer.member == 2 - rank);
    BOOST_TEST(peer.failure == "");
    BOOST_REQUIRE(peer.memory.size() == 1U);
    const MemoryPaths& host = peer.memory.front();
    BOOST_TEST((host.memory == MemoryKind::host));
    if (peer.member == 1) {
      BOOST_TEST(names_of(host) == std::vector<std::string>{"local"}, boost::test_tools::per_element());
      BOOST_TEST(peer.address == "");
      continue;
    }
    BOOST_TEST(peer.address.find(':') != std::string::npos, peer.address);
    BOOST_TEST(names_of(host) == fabrics_under_test(), boost::test_tools::per_element());
    for (const TransportPath& one : host.transports) {
      BOOST_TEST(!one.device.empty());
      BOOST_TEST(!one.gpu_direct);
      BOOST_TEST((one.max_message_ranges > 0U) == one.message);
      BOOST_TEST((one.max_read_ranges > 0U) == one.read);
      BOOST_TEST(one.map == (one.transport == "shm" || one.transport == "loopback"));
      BOOST_TEST(one.message == (one.transport != "shm" && one.transport != "libfabric"));
      BOOST_TEST((one.read || one.message));
      if (!one.map) BOOST_TEST((one.fallback_reason == FallbackReason::by_design), one.fallback_detail);
      BOOST_TEST(one.fallback_detail.empty() == (one.fallback_reason == FallbackReason::none));
    }
    const bool best = host.transports.front().map;
    BOOST_TEST(host.rejected.empty() == best);
    if (best) continue;
    const RejectedTransport& shm = host.rejected.front();
    BOOST_TEST(shm.transport == "shm");
    BOOST_TEST((shm.reason == FallbackReason::left_out));
    BOOST_TEST(shm.detail == "this session was told to use " + transport_under_test());
  }
}

BOOST_AUTO_TEST_CASE(they_take_no_bytes_and_no_lease_and_leave_restores_as_they_are) {
  Job job;
  job.publish(0);
  BOOST_REQUIRE(job.paths(1).size() == 1U);
  job.publications.front().retire(0s);  // throws if a reader is left
  job.publications.clear();
  for (const int rank : {0, 1, 2}) job.publish(rank);
  TestShard wanted({{"w", "m"}, DType::f32, {600}}, Layout::replicated(), Rank{0});
  for (int repeat = 0; repeat < 3; ++repeat) {
    Catalog target(Rank{0}, 1);
    wanted.add_to(target);
    Restore restore = job.sessions[1]->restore(target, within(patience));
    const std::size_t found = job.paths(1).size();  // while the callback runs
    BOOST_TEST(found >= 1U);
    restore.wait();
    BOOST_TEST(wanted.wrong(1) == 0U);
    BOOST_TEST(restore.report().moved_bytes + restore.report().local_bytes ==
               restore.report().needed_bytes + restore.report().overread_bytes);
  }
}

BOOST_AUTO_TEST_CASE(who_has_gone_is_not_there_any_more) {
  Job job;
  job.publish(0);
  job.publish(2);
  job.sessions[2].reset();  // crash, without leaving
  const auto until = std::chrono::steady_clock::now() + 20s;
  std::vector<PeerPath> found = job.paths(1);
  while (found.size() != 1 && std::chrono::steady_clock::now() < until) {
    for (const PeerPath& peer : found) BOOST_TEST((peer.member == 0 || !peer.failure.empty()));
    std::this_thread::sleep_for(20ms);
    found = job.paths(1);
  }
  BOOST_REQUIRE(found.size() == 1U);
  BOOST_TEST(found.front().member == 0);
  BOOST_TEST(found.front().failure == "");
}

BOOST_AUTO_TEST_CASE(one_that_hangs_holds_up_nobody_longer_than_asked) {
  Scenario made(3);
  Session sessions[] = {made.join(0), made.join(1), made.join(2)};
  std::vector<TestShard> held;
  std::vector<Publication> publications;
  for (const int rank : {0, 2}) {
    Catalog catalog(Rank{2 - rank}, 3);
    held.emplace_back(TensorSpec{{"w", "exp_avg"}, DType::f32, {6, 4}}, Layout::chunk(0, 3), Rank{2 - rank});
    held.back().add_to(catalog);
    publications.push_back(sessions[rank].publish(catalog));
  }
  made.pass(100ms);
  std::optional<Stopped> hanging(std::in_place, made, 2);
  const auto began = made.now();
  const std::vector<PeerPath> found = sessions[1].paths("state", 2s);
  BOOST_TEST((made.now() - began < 2100ms));
  BOOST_REQUIRE(found.size() == 2U);
  BOOST_TEST(found[0].member == 2);
  BOOST_TEST(found[0].failure == "it has not answered within 2 s");
  BOOST_TEST(found[0].memory.front().transports.empty());
  BOOST_TEST(found[1].member == 0);
  BOOST_TEST(found[1].failure == "");
  hanging.reset();
  publications.back().retire(10s);  // the late lease was returned
}

BOOST_AUTO_TEST_CASE(a_rendezvous_that_hangs_is_an_error_that_names_it) {
  Scenario made(2);
  const Session host = made.join(0);
  Session session = made.join(1);
  const Stopped hanging(made, 0);
  const Error error = failure_of([&] { session.paths("state", 300ms); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(error.ranks() == std::vector<Rank>{Rank{0}});
  BOOST_TEST(says(error, "the publishers of 'state'"), error.what());
}

BOOST_AUTO_TEST_CASE(a_closed_session_says_so) {
  Job job;
  job.sessions[1]->close(1s);
  const Error closed = failure_of([&] { job.paths(1); });
  BOOST_TEST((closed.code() == ErrorCode::invalid_argument));
  job.sessions[0].reset();
  const Error lost = failure_of([&] { job.paths(2); });
  BOOST_TEST((lost.code() == ErrorCode::peer_lost));
}

BOOST_AUTO_TEST_SUITE_END()
