// SPDX-License-Identifier: Apache-2.0
// The processes that the supervisor of `shardwire run` ends, and when; each test process does one thing.
#include <unistd.h>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <thread>

#include "cli/run_supervisor.hpp"

BOOST_AUTO_TEST_SUITE(supervisor)

namespace {

using namespace shardwire;
using namespace shardwire::cli;
using Clock = std::chrono::steady_clock;

void say(int descriptor, int member, const char* phase) {
  const std::string line =
      R"({"member":)" + std::to_string(member) + R"(,"phase":")" + phase + R"(","repeat":0,"done":0,"total":0})" + "\n";
  BOOST_REQUIRE(::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
}

void deliver(int descriptor, const MemberResult& result) {
  write_result(result, [&](const std::string& text) {
    const std::string line = text + "\n";
    BOOST_REQUIRE(::write(descriptor, line.data(), line.size()) == static_cast<ssize_t>(line.size()));
  });
}

// A member that waits for the others without end.
ProcessPlan waiting(int member) {
  return {{member}, [member](const MemberEnds& ends) {
            say(ends.results, member, "wait");
            while (true) ::pause();
          }};
}

ProcessPlan killed(int member, const char* phase) {
  return {{member}, [member, phase](const MemberEnds& ends) {
            say(ends.results, member, phase);
            ::kill(::getpid(), SIGKILL);
          }};
}

struct Ended {
  JobOutcome outcome;
  Clock::duration took;
};

Ended run(const std::vector<ProcessPlan>& plans) {
  const RunOptions options;
  JobProgress progress(static_cast<int>(plans.size()), 1, 0);
  const auto began = Clock::now();
  JobOutcome outcome = supervise(plans, options, progress);
  return {std::move(outcome), Clock::now() - began};
}

constexpr auto seconds = std::chrono::seconds(20);  // far below the members' own timeouts

}  // namespace

BOOST_AUTO_TEST_CASE(a_member_killed_before_it_joined_ends_the_job) {
  const Ended ended = run({waiting(0), killed(1, "join"), waiting(2)});
  BOOST_TEST((ended.took < seconds));
  BOOST_REQUIRE(ended.outcome.errors.size() == 3U);
  BOOST_TEST(ended.outcome.errors[0].code == "peer_lost");
  BOOST_TEST(ended.outcome.errors[0].message == "rank 1 was ended by signal 9 (Killed) before it had joined");
  for (const std::size_t other : {1U, 2U}) {
    BOOST_TEST(ended.outcome.errors[other].code == "cancelled");
    BOOST_TEST(ended.outcome.errors[other].message.find("since the job cannot begin without rank 1") !=
               std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_member_killed_before_the_first_restore_ends_the_job) {
  const Ended ended = run({killed(0, "fill"), waiting(1)});
  BOOST_TEST((ended.took < seconds));
  BOOST_TEST(ended.outcome.errors[0].message == "rank 0 was ended by signal 9 (Killed)");
}

BOOST_AUTO_TEST_CASE(a_member_that_cannot_join_ends_the_job) {
  const ProcessPlan failing{{0}, [](const MemberEnds& ends) {
                              say(ends.results, 0, "join");
                              MemberResult result;
                              result.errors.push_back({"out_of_resources", "rank 0: no memory"});
                              deliver(ends.results, result);
                            }};
  const Ended ended = run({failing, waiting(1)});
  BOOST_TEST((ended.took < seconds));
  BOOST_REQUIRE(ended.outcome.results.size() == 1U);
  BOOST_TEST(ended.outcome.results[0].errors[0].message == "rank 0: no memory");
  BOOST_REQUIRE(ended.outcome.errors.size() == 1U);
  BOOST_TEST(ended.outcome.errors[0].message.find("without rank 0") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(once_members_restore_a_death_leaves_the_others_their_time) {
  const ProcessPlan surviving{{0}, [](const MemberEnds& ends) {
                                say(ends.results, 0, "restore");
                                std::this_thread::sleep_for(2 * vain_wait);
                                MemberResult result;
                                result.verified = true;
                                deliver(ends.results, result);
                              }};
  const Ended ended = run({surviving, killed(1, "restore")});
  BOOST_REQUIRE(ended.outcome.results.size() == 1U);
  BOOST_TEST(ended.outcome.results[0].verified);
  BOOST_REQUIRE(ended.outcome.errors.size() == 1U);
  BOOST_TEST(ended.outcome.errors[0].message == "rank 1 was ended by signal 9 (Killed)");
}

BOOST_AUTO_TEST_CASE(gaps_arrive_whole_however_many_they_are) {
  constexpr int count = 5000;
  const ProcessPlan failing{
      {0}, [](const MemberEnds& ends) {
        MemberResult result;
        result.errors.push_back({"internal", "first"});
        result.errors.push_back({"layout_mismatch", "second"});
        for (int i = 0; i < count; ++i) {
          result.errors[1].gaps.push_back({"layers." + std::to_string(i), "m", {{i, 2}, {3, 4}}, Rank{7}});
        }
        deliver(ends.results, result);
      }};
  const Ended ended = run({failing});
  BOOST_REQUIRE(ended.outcome.results.size() == 1U);
  const std::vector<RunError>& errors = ended.outcome.results[0].errors;
  BOOST_REQUIRE(errors.size() == 2U);
  BOOST_TEST(errors[0].gaps.empty());
  BOOST_REQUIRE(errors[1].gaps.size() == static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const Gap gap{"layers." + std::to_string(i), "m", {{i, 2}, {3, 4}}, Rank{7}};
    BOOST_REQUIRE((errors[1].gaps[static_cast<std::size_t>(i)] == gap));
  }
}

BOOST_AUTO_TEST_SUITE_END()
