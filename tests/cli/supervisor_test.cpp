// SPDX-License-Identifier: Apache-2.0
// The processes that the supervisor of `shardwire run` ends, and when; each test process does one thing. What it shows
// meanwhile.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "cli/run_pipe.hpp"
#include "cli/run_supervisor.hpp"

BOOST_AUTO_TEST_SUITE(supervisor)

namespace {

using namespace shardwire;
using namespace shardwire::cli;
using WallClock = std::chrono::steady_clock;

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

ProcessPlan stopped(int member) {
  return {{member}, [](const MemberEnds&) { ::raise(SIGSTOP); }};
}

ProcessPlan fails(int member, const char* code) {
  return {{member}, [member, code](const MemberEnds& ends) {
            say(ends.results, member, "join");
            MemberResult result;
            result.errors.push_back({code, "the error of rank " + std::to_string(member), {}});
            deliver(ends.results, result);
          }};
}

struct Ended {
  JobOutcome outcome;
  WallClock::duration took;
};

Ended run(const std::vector<ProcessPlan>& plans, const RunOptions& options = {}) {
  JobProgress progress(static_cast<int>(plans.size()), 1, 0);
  const auto began = WallClock::now();
  JobOutcome outcome = supervise(plans, options, progress);
  return {std::move(outcome), WallClock::now() - began};
}

constexpr auto seconds = std::chrono::seconds(20);  // far below the members' own timeouts

constexpr ByteCount gigabyte = 1000 * 1000 * 1000;

WallClock::time_point at(int second) {
  return WallClock::time_point(std::chrono::hours(1)) + std::chrono::seconds(second);
}

// The text that `body` writes to standard error, which is a terminal or a pipe. It has to fit into a pipe.
std::string shown(bool terminal, const std::function<void()>& body) {
  int ends[2] = {-1, -1};
  if (terminal) {
    ends[0] = ::posix_openpt(O_RDWR | O_NOCTTY);
    BOOST_REQUIRE(::grantpt(ends[0]) == 0);
    BOOST_REQUIRE(::unlockpt(ends[0]) == 0);
    ends[1] = ::open(::ptsname(ends[0]), O_RDWR | O_NOCTTY);
  } else {
    BOOST_REQUIRE(::pipe(ends) == 0);
  }
  const int before = ::dup(STDERR_FILENO);
  BOOST_REQUIRE(::dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  ::close(ends[1]);
  body();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);  // closes the last writing end
  ::close(before);
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(got));
  }
  ::close(ends[0]);
  return text;
}

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
  const Ended ended = run({fails(0, "out_of_resources"), waiting(1)});
  BOOST_TEST((ended.took < seconds));
  BOOST_REQUIRE(ended.outcome.results.size() == 1U);
  BOOST_TEST(ended.outcome.results[0].errors[0].message == "the error of rank 0");
  BOOST_REQUIRE(ended.outcome.errors.size() == 1U);
  BOOST_TEST(ended.outcome.errors[0].message.find("without rank 0") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_member_stopped_before_it_joined_ends_the_job_after_the_join_timeout) {
  const Ended ended = run({waiting(0), stopped(1), waiting(2)}, {.join_timeout = Duration(0)});
  BOOST_TEST((ended.took < seconds));
  BOOST_REQUIRE(ended.outcome.errors.size() == 3U);
  BOOST_TEST(ended.outcome.errors[0].code == "timed_out");
  BOOST_TEST(ended.outcome.errors[0].message == "rank 1 did not join within 0 s and was ended");
  for (const std::size_t other : {1U, 2U}) {
    BOOST_TEST(ended.outcome.errors[other].message.ends_with("since the job cannot begin without rank 1"));
  }
}

BOOST_AUTO_TEST_CASE(a_member_that_gave_up_waiting_is_not_the_missing_one) {
  const Ended ended = run({stopped(0), fails(1, "timed_out"), waiting(2)}, {.join_timeout = Duration(0)});
  BOOST_TEST((ended.took < seconds));
  const auto says = [&](const std::string& text) {
    return std::ranges::count(ended.outcome.errors, text, &RunError::message) == 1;
  };
  BOOST_TEST(ended.outcome.errors.size() == 2U);
  BOOST_TEST(says("rank 0 did not join within 0 s and was ended"));
  BOOST_TEST(says("rank 2 was ended, since the job cannot begin without rank 0"));
}

BOOST_AUTO_TEST_CASE(members_are_told_the_missing_one_whatever_its_number) {
  const Ended ended = run({waiting(0), fails(1, "timed_out"), stopped(2)}, {.join_timeout = Duration(0)});
  BOOST_TEST((ended.took < seconds));
  const std::string told = "rank 0 was ended, since the job cannot begin without rank 2";
  BOOST_TEST(ended.outcome.errors.size() == 2U);
  BOOST_TEST(std::ranges::count(ended.outcome.errors, told, &RunError::message) == 1);
}

BOOST_AUTO_TEST_CASE(a_member_that_stopped_for_another_is_not_the_missing_one) {
  const Ended ended = run({fails(0, "cancelled"), waiting(1)});
  BOOST_TEST((ended.took < seconds));
  BOOST_REQUIRE(ended.outcome.errors.size() == 1U);
  BOOST_TEST(ended.outcome.errors[0].message == "rank 1 was ended, since rank 0 has given up");
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

BOOST_AUTO_TEST_CASE(progress_has_a_line_for_each_phase_and_one_each_ten_seconds) {
  const std::string text = shown(false, [] {
    JobProgress progress(2, 1, 4 * gigabyte);
    progress.update(0, "join", 0, 0, at(0));
    progress.update(1, "join", 0, 0, at(0));
    progress.update(0, "restore", 0, 0, at(1));  // the job is in the phase of its last member
    progress.update(1, "restore", 0, 0, at(1));
    for (int second = 2; second < 25; ++second) {
      progress.update(0, "restore", 0, static_cast<ByteCount>(second - 1) * gigabyte / 10, at(second));
    }
  });
  BOOST_TEST(text ==
             "shardwire: joining\n"
             "shardwire: restoring, 0 B of 4.00 GB\n"
             "shardwire: restoring, 1.00 GB of 4.00 GB, 100 MB/s, 30 s left\n"
             "shardwire: restoring, 2.00 GB of 4.00 GB, 100 MB/s, 20 s left\n");
}

BOOST_AUTO_TEST_CASE(progress_of_measurements_has_a_line_each_ten_seconds) {
  const std::string text = shown(false, [] {
    JobProgress progress(1, 1, 4 * gigabyte);
    for (int second = 0; second < 25; ++second) {
      progress.update(0, "measure", 0, static_cast<ByteCount>(second) * gigabyte / 10, at(second));
    }
  });
  BOOST_TEST(text ==
             "shardwire: measuring, 1.00 GB of 4.00 GB, 100 MB/s, 30 s left\n"
             "shardwire: measuring, 2.00 GB of 4.00 GB, 100 MB/s, 20 s left\n");
}

BOOST_AUTO_TEST_CASE(progress_names_the_ranks_that_others_wait_for) {
  const std::string text = shown(false, [] {
    JobProgress progress(4, 1, gigabyte);
    for (int member = 0; member < 4; ++member) progress.update(member, "join", 0, 0, at(0));
    for (int member = 0; member < 2; ++member) progress.update(member, "allocate", 0, 0, at(1));
    for (int second = 1; second < 5; ++second) progress.tick(at(second));
    progress.update(3, "allocate", 0, 0, at(5));
    progress.tick(at(12));
    progress.update(2, "allocate", 0, 0, at(13));
    progress.update(0, "wait", 0, 0, at(13));
    progress.tick(at(15));
  });
  BOOST_TEST(text ==
             "shardwire: joining\n"
             "shardwire: joining; waiting for ranks 2, 3\n"
             "shardwire: joining; waiting for rank 2\n"
             "shardwire: allocating\n"
             "shardwire: allocating; waiting for ranks 1..3\n");
}

BOOST_AUTO_TEST_CASE(progress_of_a_launched_job_names_the_ranks_that_have_not_joined) {
  const std::string text = shown(false, [] {
    JobProgress progress(3, 1, gigabyte);
    progress.begin_joining(at(0));
    for (int member = 0; member < 2; ++member) progress.update(member, "wait", 0, 0, at(1));
    progress.tick(at(3));
    progress.update(2, "wait", 0, 0, at(4));
    progress.tick(at(5));
    progress.update(0, "allocate", 0, 0, at(6));
    progress.tick(at(9));
  });
  BOOST_TEST(text ==
             "shardwire: joining\n"
             "shardwire: joining; waiting for rank 2\n"
             "shardwire: allocating\n");
}

BOOST_AUTO_TEST_CASE(lines_of_the_log_tell_who_has_joined) {
  BOOST_TEST(joined_of("member 12 of 16 joined from 10.0.0.7 port 46051").value_or(-1) == 12);
  BOOST_TEST(joined_of("member 0 of 3 joined job 'a' at 127.0.0.1 port 29501, over lo (127.0.0.1)").value_or(-1) == 0);
  for (const char* const line : {"member 1 of 3 of job ' joined' could not join at 127.0.0.1 port 29501", "member 1 of",
                                 "a guest joined from 10.0.0.7 port 46051", "member one of 3 joined", ""}) {
    BOOST_TEST(!joined_of(line), line);
  }
}

BOOST_AUTO_TEST_CASE(a_member_that_has_joined_is_waited_for_to_answer) {
  const auto text = [](const std::vector<int>& missing, const std::set<int>& joined) {
    return absence_text(std::chrono::milliseconds(1500), missing, joined, 4);
  };
  BOOST_TEST(text({2}, {0, 1}) == "waited 1.5 s for member 2 of 4 to join");
  BOOST_TEST(text({2, 3}, {0, 1, 2, 3}) == "waited 1.5 s for members 2, 3 of 4, which have joined, to answer");
  BOOST_TEST(text({2, 3}, {0, 2}) ==
             "waited 1.5 s for member 3 of 4 to join, and for member 2 of 4, which has joined, to answer");
  BOOST_TEST(text({2}, {}) == "waited 1.5 s for member 2 of 4 to join or answer");
}

BOOST_AUTO_TEST_CASE(a_member_that_does_not_answer_delays_the_end_by_half_a_minute) {
  using namespace std::chrono_literals;
  for (const Duration timeout : {Duration(1s), Duration(1h)}) {
    Patience patience{.timeout = timeout};
    Duration after_deadline = patience.to_meet(timeout);
    patience.unanswered = true;
    after_deadline += patience.to_retire() + patience.to_deliver() + patience.to_leave();
    BOOST_TEST((after_deadline == 23s));
  }
}

BOOST_AUTO_TEST_CASE(members_that_answer_have_the_time_of_a_restore) {
  using namespace std::chrono_literals;
  const Patience patience{.timeout = 60s};
  BOOST_TEST((patience.to_meet(20s) == 50s));
  BOOST_TEST((patience.to_meet(2min) == 1s));  // this process was stopped meanwhile
  BOOST_TEST((patience.to_deliver() > patience.timeout));
  BOOST_TEST((patience.to_retire() == 10s && patience.to_leave() == 10s));
}

BOOST_AUTO_TEST_CASE(progress_blames_no_rank_that_restores) {
  for (const char* const phase : {"restore", "bind"}) {
    const std::string text = shown(false, [&] {
      JobProgress progress(3, 1, gigabyte);
      for (int member = 0; member < 3; ++member) progress.update(member, phase, 0, 0, at(0));
      progress.update(0, "wait", 0, 0, at(1));
      progress.tick(at(3));
      progress.update(1, "wait", 0, 0, at(4));
      progress.tick(at(14));
    });
    BOOST_TEST(text.find("; ranks 1, 2 have not finished\n") != std::string::npos, text);
    BOOST_TEST(text.ends_with("; rank 2 has not finished\n"), text);
  }
}

BOOST_AUTO_TEST_CASE(progress_names_what_a_rank_waits_for_until_bytes_arrive) {
  const std::string source = "16.8 MB from source rank 2 (10.0.0.7:51234)";
  const std::string line = "'state' as layout rank 0 has waited 2 s for " + source;
  BOOST_TEST(awaited_of(line) == source);
  BOOST_TEST(awaited_of("'state' as layout rank 0 is restored at step 1000") == "");
  const std::string text = shown(false, [&] {
    JobProgress progress(3, 1, gigabyte);
    for (int member = 0; member < 3; ++member) progress.update(member, "restore", 0, 0, at(0));
    progress.note_awaited(1, source);
    progress.update(1, "restore", 0, 0, at(3));
    progress.update(1, "restore", 0, gigabyte / 4, at(10));
    progress.tick(at(14));
  });
  BOOST_TEST(text ==
             "shardwire: restoring, 0 B of 1.00 GB\n"
             "shardwire: restoring, 0 B of 1.00 GB; rank 1 waits for 16.8 MB from source rank 2 (10.0.0.7:51234)\n"
             "shardwire: restoring, 250 MB of 1.00 GB, 17.9 MB/s, 42 s left\n");
}

BOOST_AUTO_TEST_CASE(progress_after_a_failure_names_it_and_predicts_no_end) {
  const std::string text = shown(false, [] {
    JobProgress progress(3, 1, gigabyte);
    for (int member = 0; member < 3; ++member) progress.update(member, "restore", 0, 0, at(0));
    progress.update(0, "restore", 0, gigabyte / 2, at(10));
    for (int member = 0; member < 2; ++member) {
      progress.note_failure("target rank " + std::to_string(member) + ": no answer", at(11));
      progress.update(member, "wait", 0, 0, at(11));
    }
    for (const int second : {12, 13, 23}) progress.tick(at(second));
  });
  const std::string after =
      "shardwire: restoring, 500 MB of 1.00 GB; failed: target rank 0: no answer; rank 2 has not finished\n";
  BOOST_TEST(text ==
             "shardwire: restoring, 0 B of 1.00 GB\n"
             "shardwire: restoring, 500 MB of 1.00 GB, 50.0 MB/s, 10 s left\n" +
                 after + after);
}

BOOST_AUTO_TEST_CASE(a_member_tells_why_its_restore_has_failed) {
  int ends[2] = {-1, -1};
  BOOST_REQUIRE(::pipe(ends) == 0);
  std::mutex writing;
  MemberPipe(ends[1], writing, 3).failed("target rank 1: no \"answer\"");
  ::close(ends[1]);
  char block[256];
  const ssize_t got = ::read(ends[0], block, sizeof block);
  ::close(ends[0]);
  BOOST_REQUIRE(got > 0);
  BOOST_TEST(std::string(block, static_cast<std::size_t>(got)) ==
             R"({"member":3,"failed":"target rank 1: no \"answer\""})"
             "\n");
}

BOOST_AUTO_TEST_CASE(progress_waits_for_no_rank_whose_process_has_ended) {
  const std::string text = shown(false, [] {
    JobProgress progress(3, 1, gigabyte);
    for (int member = 0; member < 3; ++member) progress.update(member, "fill", 0, 0, at(0));
    progress.update(0, "check", 0, 0, at(1));
    progress.leave(1);
    progress.tick(at(3));
    progress.update(2, "check", 0, 0, at(4));
    progress.tick(at(7));
  });
  BOOST_TEST(text.find("rank 1") == std::string::npos, text);
  BOOST_TEST(text.find("waiting for rank 2\n") != std::string::npos, text);
  BOOST_TEST(text.ends_with("shardwire: checking every element\n"), text);
}

BOOST_AUTO_TEST_CASE(progress_of_repeated_restores_has_the_phases_of_the_first) {
  const std::string text = shown(false, [] {
    JobProgress progress(1, 3, 4 * gigabyte);
    for (int repeat = 0; repeat < 3; ++repeat) {
      progress.update(0, "fill", repeat, 0, at(3 * repeat));
      progress.update(0, "restore", repeat, 0, at(3 * repeat + 1));
      progress.update(0, "check", repeat, 0, at(3 * repeat + 2));
    }
    progress.tick(at(11));
    progress.tick(at(12));
    progress.update(0, "wait", 3, 0, at(13));
    progress.tick(at(30));
  });
  BOOST_TEST(text ==
             "shardwire: restore 1 of 3: making values\n"
             "shardwire: restore 1 of 3: restoring, 0 B of 4.00 GB\n"
             "shardwire: restore 1 of 3: checking every element\n"
             "shardwire: restore 3 of 3: checking every element\n"
             "shardwire: restore 3 of 3: checking every element\n");
}

BOOST_AUTO_TEST_CASE(progress_is_a_bar_on_a_terminal) {
  const std::string text = shown(true, [] {
    JobProgress progress(1, 1, 8 * gigabyte);
    progress.update(0, "restore", 0, 0, at(0));
    progress.update(0, "restore", 0, 2 * gigabyte, at(2));
    progress.update(0, "restore", 0, 2 * gigabyte, at(2));  // too soon
  });
  BOOST_TEST(text ==
             "\r\033[K[                    ] restoring, 0 B of 8.00 GB"
             "\r\033[K[=====               ] restoring, 2.00 GB of 8.00 GB, 1.00 GB/s, 6 s left"
             "\r\033[K");
}

BOOST_AUTO_TEST_CASE(progress_of_measurements_is_a_bar_at_once) {
  const std::string text = shown(true, [] {
    JobProgress progress(1, 1, 8 * gigabyte);
    progress.update(0, "measure", 0, 0, at(0));
    progress.update(0, "measure", 0, 4 * gigabyte, at(4));
  });
  BOOST_TEST(text ==
             "\r\033[K[                    ] measuring, 0 B of 8.00 GB"
             "\r\033[K[==========          ] measuring, 4.00 GB of 8.00 GB, 1.00 GB/s, 4 s left"
             "\r\033[K");
}

BOOST_AUTO_TEST_CASE(progress_is_cut_at_the_width_of_the_terminal) {
  const std::string text = shown(true, [] {
    const winsize narrow{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    BOOST_REQUIRE(::ioctl(STDERR_FILENO, TIOCSWINSZ, &narrow) == 0);
    JobProgress progress(1, 1, 8 * gigabyte);
    progress.update(0, "restore", 0, 2 * gigabyte, at(0));
  });
  BOOST_TEST(text == "\r\033[K[=====               ] restoring, 2.00 \r\033[K");
}

BOOST_AUTO_TEST_SUITE_END()
