// SPDX-License-Identifier: Apache-2.0
// Jobs whose processes are all killed at once, in the middle of whatever they do, and begin again with other numbers of
// ranks. `shardwire keep` is the only process that goes on.
#include <poll.h>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "keeper/trainer.hpp"
#include "support/child.hpp"
#include "support/command.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(keeper_restart)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

std::string command() {
  return std::getenv("COMMAND_UNDER_TEST");
}

CommandResult keep(const std::string& job, std::vector<std::string> more) {
  std::vector<std::string> words = {command(), "keep", "--job", job};
  words.insert(words.end(), more.begin(), more.end());
  return RunningCommand(words).wait(60s);
}

nlohmann::json status(const std::string& job, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--status", "--json"});
  const CommandResult result = keep(job, more);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  return nlohmann::json::parse(result.out);
}

void wait_for_keeper(const std::string& job) {
  while (keep(job, {"--status"}).exit_code != 0) std::this_thread::sleep_for(10ms);
}

std::array<std::int64_t, 2> next_report(const Child& trainer) {
  const auto frame = read_frame(trainer.socket());
  std::array<std::int64_t, 2> both{};
  BOOST_REQUIRE(frame.size() == sizeof both);
  std::memcpy(both.data(), frame.data(), sizeof both);
  return both;
}

/// All ranks of a job, until they are killed.
class Job {
 public:
  /// `hosts`: over which they are spread; 0: there is one, and no buddies.
  Job(const std::string& name, int ranks, int hosts = 0) {
    const std::string port = std::to_string(free_port());
    for (int rank = 0; rank < ranks; ++rank) {
      host_of_.push_back(hosts > 0 ? rank * hosts / ranks : -1);
      trainers_.push_back(std::make_unique<Child>(
          std::vector<std::string>{std::getenv("TEST_PEER"), std::to_string(rank), std::to_string(ranks), port, name,
                                   std::to_string(host_of_.back())}));
    }
  }
  void kill_host(int host) {
    for (std::size_t rank = 0; rank < trainers_.size(); ++rank) {
      if (host_of_[rank] == host) trainers_[rank]->kill();
    }
  }
  /// The step that all have restored. No byte of it is wrong.
  std::int64_t restored() {
    std::int64_t step = -1;
    for (const auto& one : trainers_) {
      const auto [at, wrong] = next_report(*one);
      BOOST_TEST(wrong == 0);
      BOOST_TEST((step == -1 || step == at));
      step = at;
    }
    return step;
  }
  /// Waits until the first rank has kept a step.
  std::int64_t kept_by_first() { return next_report(*trainers_.front())[0]; }
  /// Returns the newest step that every rank has reported.
  std::int64_t kill() {
    for (const auto& one : trainers_) one->kill();
    std::int64_t newest = std::numeric_limits<std::int64_t>::max();
    for (const auto& one : trainers_) {
      one->reap();
      std::int64_t of_rank = 0;
      try {
        while (true) of_rank = next_report(*one)[0];
      } catch (const std::exception&) {  // the end of what it has reported
      }
      newest = std::min(newest, std::max(of_rank, one == trainers_.front() ? seen_ : 0));
    }
    return newest;
  }
  void seen(std::int64_t step) { seen_ = step; }
  void freeze() {
    for (const auto& one : trainers_) one->freeze();
  }
  void thaw() {
    for (const auto& one : trainers_) ::kill(one->pid(), SIGCONT);
  }

 private:
  std::vector<std::unique_ptr<Child>> trainers_;
  std::vector<int> host_of_;
  std::int64_t seen_ = 0;  // reports of the first that were read before
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_job_that_is_killed_at_any_moment_goes_on_in_any_layout) {
  const Deadline deadline(280s);
  const std::string name = "restart-test-" + std::to_string(::getpid());
  RunningCommand keeper({command(), "keep", "--job", name, "--budget", "16M"});
  wait_for_keeper(name);
  std::mt19937_64 random(test_seed());
  std::int64_t reached = 0;
  for (const int ranks : {4, 3, 1, 4, 2}) {
    Job job(name, ranks);
    const std::int64_t step = job.restored();
    BOOST_TEST(step >= reached);
    BOOST_TEST_MESSAGE(ranks << " ranks go on from step " << step << ", all had kept " << reached);
    for (int steps = 0; steps < 3; ++steps) job.seen(job.kept_by_first());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    reached = job.kill();
    BOOST_TEST(reached > step);
  }
  Job last(name, 3);
  BOOST_TEST(last.restored() >= reached);
  const auto seen = status(name);
  BOOST_TEST(seen.at("attempts") == 6);
  BOOST_TEST(seen.at("used_bytes").get<ByteCount>() <= ByteCount{16} << 20);
}

// Four hosts with a keeper each. One is lost as a whole; the launcher then ends the others, and begins again with an empty
// host in its place.
BOOST_AUTO_TEST_CASE(a_job_that_loses_any_host_goes_on_in_any_layout) {
  const Deadline deadline(280s);
  const std::string name = "buddies-test-" + std::to_string(::getpid());
  constexpr int hosts = 4;
  std::array<std::unique_ptr<RunningCommand>, hosts> keepers;
  const auto start = [&](int host) {
    const std::string socket = socket_of_host(name, host);
    keepers[static_cast<std::size_t>(host)] = std::make_unique<RunningCommand>(
        std::vector<std::string>{command(), "keep", "--job", name, "--socket", socket, "--budget", "32M"});
    while (keep(name, {"--socket", socket, "--status"}).exit_code != 0) std::this_thread::sleep_for(10ms);
  };
  for (int host = 0; host < hosts; ++host) start(host);
  std::mt19937_64 random(test_seed());
  std::int64_t reached = 0;
  const char* const asked = std::getenv("LOST_HOSTS");
  const int losses = asked != nullptr ? std::atoi(asked) : 3;
  for (int loss = 0; loss < losses; ++loss) {
    const int ranks = std::array{8, 5, 4, 6}[static_cast<std::size_t>(loss % 4)];
    const int lost = static_cast<int>(random() % hosts);
    Job job(name, ranks, hosts);
    const std::int64_t step = job.restored();
    BOOST_TEST(step >= reached);
    BOOST_TEST_MESSAGE(ranks << " ranks go on from step " << step << ", all had copied " << reached << "; host " << lost
                             << " is lost");
    for (int steps = 0; steps < 3; ++steps) job.seen(job.kept_by_first());
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    job.kill_host(lost);
    RunningCommand& keeper = *keepers[static_cast<std::size_t>(lost)];
    keeper.send(SIGKILL);
    reached = job.kill() - 1;  // a step that all have published: before it they have copied the one before
    keeper.wait(30s);
    BOOST_TEST(reached > step);
    const auto beside = status(name, {"--socket", socket_of_host(name, (lost + 1) % hosts)}).at("kept");
    for (const bool copy : {false, true}) {
      BOOST_TEST(std::ranges::any_of(beside, [&](const auto& one) { return one.at("copy") == copy; }));
    }
    start(lost);
  }
  Job last(name, 4, hosts);  // a keeper on a host without a trainer is not heard of
  BOOST_TEST(last.restored() >= reached);
}

// They may go on at any time, and must find that the job has gone on without them.
BOOST_AUTO_TEST_CASE(a_job_whose_processes_are_stopped_is_taken_over) {
  const Deadline deadline(120s);
  const std::string name = "stopped-test-" + std::to_string(::getpid());
  // Room for what is kept and one more of each rank.
  RunningCommand keeper({command(), "keep", "--job", name, "--budget", "2600K"});
  wait_for_keeper(name);
  Job old(name, 2);
  BOOST_TEST(old.restored() == 0);
  for (int steps = 0; steps < 3; ++steps) old.kept_by_first();
  old.freeze();
  Job fresh(name, 1);
  const std::int64_t step = fresh.restored();
  BOOST_TEST(step >= 2);
  for (int steps = 0; steps < 3; ++steps) fresh.kept_by_first();
  old.thaw();
  BOOST_TEST(fresh.kept_by_first() > step + 3);
  const auto now = status(name);
  for (const auto& one : now.at("kept")) BOOST_TEST(one.at("attempt") == 2);
}

BOOST_AUTO_TEST_CASE(a_keeper_says_what_it_holds_and_drops_it_when_told_to) {
  const Deadline deadline(120s);
  const std::string name = "status-test-" + std::to_string(::getpid());
  BOOST_TEST(keep(name, {"--status"}).exit_code == 1);
  BOOST_TEST(keep(name, {"--json"}).exit_code == 2);
  BOOST_TEST(keep(name, {}).exit_code == 2);  // no budget
  RunningCommand keeper({command(), "keep", "--job", name, "--budget", "16M"});
  wait_for_keeper(name);
  BOOST_TEST(keep(name, {"--status"}).out.find("nothing is kept") != std::string::npos);
  const CommandResult second = keep(name, {"--budget", "1M"});
  BOOST_TEST(second.exit_code == 2);
  BOOST_TEST(second.err.find("has a keeper on this host already") != std::string::npos, second.err);
  {
    Job job(name, 2);
    BOOST_TEST(job.restored() == 0);
    for (int steps = 0; steps < 2; ++steps) job.kept_by_first();
    bool alive = false;
    const auto now = status(name);
    for (const auto& one : now.at("kept")) alive = alive || one.at("trainer") == "alive";
    BOOST_TEST(alive);
  }
  nlohmann::json kept;
  do {
    kept = status(name).at("kept");
  } while (std::ranges::any_of(kept, [](const auto& one) { return one.at("trainer") == "alive"; }));
  BOOST_TEST(kept.size() >= 2U);
  for (const auto& one : kept) {
    BOOST_TEST(one.at("name") == "state");
    BOOST_TEST(one.at("complete") == true);
    BOOST_TEST(one.at("copy") == false);
  }
  const auto now = status(name);
  BOOST_REQUIRE(now.at("complete_here").size() == 1U);
  const auto& newest = now.at("complete_here")[0];
  BOOST_TEST(newest.at("name") == "state");
  BOOST_TEST(newest.at("ranks") == 2);
  BOOST_TEST(newest.at("attempt") == 1);
  const auto step = newest.at("step").get<std::int64_t>();
  for (const int rank : {0, 1}) {
    BOOST_TEST(
        std::ranges::any_of(kept, [&](const auto& one) { return one.at("step") == step && one.at("rank") == rank; }));
  }
  const std::string text = keep(name, {"--status"}).out;
  BOOST_TEST(text.find("complete here: 'state', step " + std::to_string(step) + ", all 2 ranks, attempt 1\n") !=
                 std::string::npos,
             text);
  BOOST_TEST(text.find(" of 16.8 MB in use (") != std::string::npos, text);
  BOOST_TEST(keep(name, {"--drop", "state"}).exit_code == 0);
  BOOST_TEST(status(name).at("kept").empty());
  BOOST_TEST(status(name).at("used_bytes") == 0);
  keeper.send(SIGTERM);
  const CommandResult ended = keeper.wait(30s);
  BOOST_TEST(ended.exit_code == 0);
  BOOST_TEST(ended.err.find("Z INFO  shardwire run=" + name + " member=- attempt 1 of job '" + name + "' has begun") !=
                 std::string::npos,
             ended.err);
}

BOOST_AUTO_TEST_SUITE_END()
