// SPDX-License-Identifier: Apache-2.0
// How often a restore waits for an answer before it can go on. Everything takes the same time from host to host, and
// all else next to none, so that the time of a restore tells. And that it waits often enough: a source that changes its step
// meanwhile gives no wrong byte.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/schedule.hpp"
#include "simulation/world.hpp"

BOOST_AUTO_TEST_SUITE(round_trips)

using namespace shardwire::simulation;
using namespace std::chrono_literals;
using shardwire::Duration;

namespace {

constexpr Duration one_way = 100ms;

/// Member 0 serves the rendezvous. Member 2 restores twice what another one has published, or what two have published
/// one half each of. All are on hosts of their own.
struct Job {
  bool sockets = true;  ///< the fabric takes them
  bool key = false;     ///< and no encryption, which a simulation does not have
  int sources = 1;
};

Schedule schedule_of(const Job& job) {
  Schedule schedule;
  schedule.seed = 1;
  schedule.sources = job.sources == 1 ? std::vector<int>{1} : std::vector<int>{1, 3};
  schedule.targets = {2};
  schedule.members = job.sources == 1 ? 3 : 4;
  schedule.hosts = schedule.members;
  for (int member = 0; member < schedule.members; ++member) {
    schedule.host_of.push_back(member);
    schedule.maps.push_back(false);
    schedule.reads.push_back(false);
    schedule.memory.push_back(Schedule::Memory::plain);
    schedule.actions.push_back({.kind = Action::Kind::join, .member = member});
  }
  const shardwire::TensorSpec spec{{"weight", "exp_avg"}, shardwire::DType::f32, {2, 4}};
  schedule.tensors.push_back({spec, shardwire::Layout::chunk(0, job.sources), shardwire::Layout::replicated()});
  schedule.delay = {.lower = one_way, .upper = one_way};
  schedule.deadline = 60s;
  schedule.grace = 50ms;
  schedule.notice = 50s;
  schedule.again = true;
  schedule.sockets = job.sockets;
  schedule.key = job.key;
  schedule.staging_bytes = 32 << 20;  // no request waits for a slot
  for (const int source : schedule.sources) {
    schedule.actions.push_back({.kind = Action::Kind::publish, .at = 5s, .member = source, .other = 1});
  }
  for (const Duration at : {Duration(10s), Duration(20s)}) {
    schedule.actions.push_back({.kind = Action::Kind::restore, .at = at, .member = 2});
  }
  schedule.must_complete = true;
  return schedule;
}

/// How each of the two restores has ended.
std::vector<Ending> endings_of(const Schedule& schedule) {
  const Findings findings = run(schedule);
  for (const std::string& failure : findings.failures) BOOST_ERROR(failure);
  BOOST_REQUIRE_EQUAL(findings.endings.size(), 2u);
  for (const Ending& ending : findings.endings) BOOST_CHECK(ending.completed);
  return findings.endings;
}

/// Of each of the two restores.
std::vector<std::int64_t> trips_of(const Job& job) {
  std::vector<std::int64_t> trips;
  for (const Ending& ending : endings_of(schedule_of(job))) {
    trips.push_back((ending.lasted + one_way) / (2 * one_way));
  }
  return trips;
}

std::int64_t trips_of_first(const Job& job) {
  return trips_of(job).front();
}

}  // namespace

BOOST_AUTO_TEST_CASE(of_a_first_restore_over_sockets) {
  BOOST_CHECK_EQUAL(trips_of_first({}), 8);
}

// Its messages are not copied, so the source confirms the bytes.
BOOST_AUTO_TEST_CASE(of_a_first_restore_over_a_fabric_that_needs_no_sockets) {
  BOOST_CHECK_EQUAL(trips_of_first({.sockets = false}), 8);
}

// Requests wait for the proof of the source; sockets are opened and attached meanwhile.
BOOST_AUTO_TEST_CASE(of_a_first_restore_with_a_key_and_no_encryption) {
  BOOST_CHECK_EQUAL(trips_of_first({.key = true}), 8);
  BOOST_CHECK_EQUAL(trips_of_first({.sockets = false, .key = true}), 9);
}

BOOST_AUTO_TEST_CASE(of_a_first_restore_from_two_sources) {
  BOOST_CHECK_EQUAL(trips_of_first({.sources = 2}), 9);
}

// Longer than sockets to the first one stay open that nothing asks for.
BOOST_AUTO_TEST_CASE(a_source_may_publish_long_after_the_other_one) {
  constexpr Duration later = 16s;
  Schedule schedule = schedule_of({.sources = 2});
  for (Action& action : schedule.actions) {
    if (action.kind == Action::Kind::publish && action.member == 3) action.at += later;
    if (action.kind == Action::Kind::restore && action.at > 10s) action.at += later;
  }
  std::ranges::stable_sort(schedule.actions, {}, &Action::at);
  BOOST_CHECK_GT(endings_of(schedule).front().lasted.count(), Duration(later - 5s).count());
}

// It has links, sockets and a plan.
BOOST_AUTO_TEST_CASE(of_a_later_restore_of_the_same_catalog) {
  for (const bool sockets : {true, false}) {
    BOOST_CHECK_GE(trips_of({.sockets = sockets}).back(), 1);
    BOOST_CHECK_LE(trips_of({.sockets = sockets}).back(), 2);
  }
}

// Its memory is overwritten when it is the caller's again: once no lease is left, and a second after the update in any case.
// A first restore has a lease and lasts longer than that, a later one has none.
BOOST_AUTO_TEST_CASE(no_byte_is_wrong_if_the_source_changes_its_step_meanwhile) {
  struct Means {
    shardwire::RestoreMethod method;
    bool sockets;
  };
  struct Time {
    Duration of_restore;
    Duration apart;
  };
  using shardwire::RestoreMethod;
  std::vector<std::string> missing{"restored step 1, 32768 bytes packed", "restored step 1, 32768 bytes zcopy",
                                   "restored step 1, 32768 bytes read", "restored step 2"};
  for (const Means& means : {Means{RestoreMethod::packed, true}, Means{RestoreMethod::packed, false},
                             Means{RestoreMethod::zcopy, true}, Means{RestoreMethod::read, false}}) {
    for (const Time& time : {Time{10s, 200ms}, Time{20s, 20ms}}) {
      for (int update = 0; update < 20; ++update) {
        Schedule schedule = schedule_of({.sockets = means.sockets});
        schedule.tensors.front().spec.shape = {64, 128};
        schedule.staging_bytes = 4 << 10;  // an eighth of the tensor
        schedule.method = means.method;
        schedule.reads.assign(schedule.reads.size(), means.method == RestoreMethod::read);
        schedule.memory[1] = Schedule::Memory::arena;
        schedule.must_complete = false;
        const Duration at = time.of_restore + update * time.apart;
        schedule.actions.push_back({.kind = Action::Kind::update, .at = at, .member = 1, .other = 2});
        std::ranges::stable_sort(schedule.actions, {}, &Action::at);
        const Findings findings = run(schedule);
        for (const std::string& failure : findings.failures) {
          BOOST_ERROR("update at " << at.count() << " ns: " << failure);
        }
        std::erase_if(missing, [&](const std::string& one) { return findings.trace.find(one) != std::string::npos; });
      }
    }
  }
  for (const std::string& one : missing) BOOST_ERROR("no run shows '" << one << "'");
}

// One of two that hold the same is killed at some time of the restore. The other one sends again only bytes that nothing proves.
BOOST_AUTO_TEST_CASE(of_a_lost_source_only_messages_that_are_copied_stay) {
  for (const bool sockets : {true, false}) {
    std::set<std::string> restored;  // with how many bytes
    for (int kill = 0; kill < 20; ++kill) {
      Schedule schedule = schedule_of({.sockets = sockets, .sources = 2});
      schedule.tensors.front().held = shardwire::Layout::replicated();
      schedule.tensors.front().spec.shape = {64, 128};
      schedule.staging_bytes = 4 << 10;  // an eighth of the tensor
      schedule.method = shardwire::RestoreMethod::packed;
      schedule.actions.pop_back();  // the later restore
      schedule.must_complete = false;
      schedule.actions.push_back({.kind = Action::Kind::kill, .at = 10s + kill * 200ms, .member = 3});
      const Findings findings = run(schedule);
      for (const std::string& failure : findings.failures) BOOST_ERROR("killed at time " << kill << ": " << failure);
      const std::string_view trace = findings.trace;
      const std::size_t at = trace.find("restored step 1, ");
      BOOST_REQUIRE_MESSAGE(at != std::string_view::npos, "killed at time " << kill << ": nothing is restored");
      restored.emplace(trace.substr(at, trace.find('\n', at) - at));
    }
    const bool none_again = restored == std::set<std::string>{"restored step 1, 32768 bytes packed"};
    BOOST_CHECK_EQUAL(none_again, sockets);
  }
}

BOOST_AUTO_TEST_SUITE_END()
