// SPDX-License-Identifier: Apache-2.0
// `shardwire run --fault` and `shardwire drill`: real processes, struck at events of their restores.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/command.hpp"

BOOST_AUTO_TEST_SUITE(faults)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

constexpr std::chrono::seconds patience(200);

std::string transport_under_test() {
  const char* name = std::getenv("TEST_TRANSPORT");
  return name == nullptr ? "tcp" : name;
}
bool maps() {
  return transport_under_test() != "tcp";
}

struct Outcome {
  CommandResult result;
  Json report;  ///< null if no report was written
};

CommandResult command(std::vector<std::string> words, const std::string& input) {
  std::vector<std::string> all = {command_path()};
  all.insert(all.end(), words.begin(), words.end());
  return RunningCommand(all, input, {{"SHARDWIRE_LOG", "error"}}).wait(patience);
}

Outcome run(const std::string& text, const std::vector<std::string>& more) {
  const std::string path = "faults_test_report." + std::to_string(::getpid()) + ".json";
  std::remove(path.c_str());
  // Slow enough that bytes are missing at each moment.
  std::vector<std::string> words = {"run", "-", "--report", path, "--timeout", "60"};
  const auto by_default = [&](const char* option, const std::string& value) {
    if (std::ranges::find(more, option) == more.end()) words.insert(words.end(), {option, value});
  };
  by_default("--transport", transport_under_test());
  by_default("--notice", "3");  // a busy machine may keep a live source from answering for a second
  by_default("--rate", "2M");
  words.insert(words.end(), more.begin(), more.end());
  Outcome outcome{command(words, text), {}};
  if (std::ifstream file(path); file) outcome.report = Json::parse(file);
  std::remove(path.c_str());
  return outcome;
}

// Each row has two holders among 4 source ranks; ranks 2 and 3 are no target ranks.
const char* const replicated = R"j({
  "states": ["m"], "scalars": {"step": 7}, "tensors": [{"fqn": "w", "shape": [256, 512]}, {"fqn": "u", "shape": [64, 64]}],
  "source": {"ranks": 4, "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}}},
  "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}
})j";

// The same, and rank 3 is lost.
std::string with_loss() {
  std::string text = replicated;
  const std::string ranks = R"("ranks": 4)";
  return text.replace(text.find(ranks), ranks.size(), ranks + R"(, "lost": [3])");
}

// Each row has one holder.
const char* const unreplicated = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [256, 512]}],
  "source": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}}}
})j";

Json only_fault(const Outcome& outcome) {
  BOOST_REQUIRE(outcome.report.is_object());
  BOOST_REQUIRE(outcome.report["faults"].size() == 1);
  return outcome.report["faults"][0];
}

void require_complete(const Outcome& outcome) {
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_TEST(outcome.report["verified"] == true);
  BOOST_TEST(outcome.report["errors"].empty());
  const Json& bytes = outcome.report["bytes"];
  BOOST_TEST(bytes["moved"].get<double>() + bytes["local"].get<double>() ==
             bytes["needed"].get<double>() + bytes["extra"].get<double>() + bytes["again"].get<double>());
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_source_that_no_target_shares_may_die) {
  for (const std::string kind : {"kill", "stop", "cut"}) {
    BOOST_TEST_CONTEXT(kind) {
      const Outcome outcome = run(replicated, {"--fault", kind + ":3@30"});
      require_complete(outcome);
      const Json fault = only_fault(outcome);
      BOOST_TEST(fault["rank"] == 3);
      BOOST_TEST(fault["kind"] == kind);
      BOOST_TEST(fault["at_percent"] == 30);
      BOOST_TEST(fault["struck"] == true);
      // Nobody asks a source whose mapped memory shows that it is published.
      if (!maps()) BOOST_REQUIRE(fault["noticed_s"].is_number());
      if (fault["noticed_s"].is_number()) {
        BOOST_TEST(fault["noticed_s"].get<double>() >= 0);
        BOOST_TEST(fault["noticed_s"].get<double>() < 30);
      }
      // Mapped memory of a source that is gone is read on.
      BOOST_TEST((fault["boxes_replanned"] > 0) == !maps());
      BOOST_TEST(fault["bytes_moved_again"] == outcome.report["bytes"]["again"]);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_target_that_dies_fails_the_job_and_no_other_target) {
  const Outcome outcome = run(replicated, {"--fault", "kill:1@50"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_TEST(only_fault(outcome)["struck"] == true);
  BOOST_REQUIRE(outcome.report["errors"].size() == 1);
  BOOST_TEST(outcome.report["errors"][0]["code"] == "process_died");
  BOOST_TEST(outcome.report["errors"][0]["message"] == "target rank 1 died with source rank 1: --fault kill:1@50");
  BOOST_REQUIRE(outcome.report["ranks"].size() == 1);
  BOOST_TEST(outcome.report["ranks"][0]["rank"] == 0);
  BOOST_TEST(outcome.report["verified"] == false);
}

// It serves the rendezvous, which no restore under way needs.
BOOST_AUTO_TEST_CASE(member_0_may_be_lost_too) {
  const Outcome outcome = run(replicated, {"--disjoint", "--fault", "kill:0@50"});
  require_complete(outcome);
}

BOOST_AUTO_TEST_CASE(a_source_that_slows_down_is_not_given_up) {
  const Outcome outcome = run(replicated, {"--fault", "slow:2@20", "--notice", "5"});
  require_complete(outcome);
  const Json fault = only_fault(outcome);
  BOOST_TEST(fault["struck"] == true);
  BOOST_TEST(fault["noticed_s"].is_null());
  BOOST_TEST(fault["boxes_replanned"] == 0);
}

BOOST_AUTO_TEST_CASE(a_source_at_its_next_step_is_replaced_by_a_holder_of_this_step) {
  const Outcome outcome = run(replicated, {"--fault", "restep:2@30", "--rate", "200K"});
  require_complete(outcome);
  const Json fault = only_fault(outcome);
  BOOST_TEST(fault["noticed_s"].is_number());
  BOOST_TEST(fault["boxes_replanned"] > 0);
  BOOST_TEST(fault["bytes_moved_again"] == outcome.report["bytes"]["again"]);
}

BOOST_AUTO_TEST_CASE(a_bit_that_flips_is_found_by_digests_or_by_the_check_of_every_element) {
  const Outcome checked = run(replicated, {"--fault", "corrupt:2@10"});
  BOOST_TEST(checked.result.exit_code == 1);
  BOOST_TEST(checked.result.err.find("--verify digest") != std::string::npos);
  BOOST_REQUIRE(checked.report["errors"].size() == 1);
  BOOST_TEST(checked.report["errors"][0]["code"] == "wrong_element");
  BOOST_TEST(checked.report["errors"][0]["message"].get<std::string>().find(": 1 of ") != std::string::npos);

  const Outcome digested = run(replicated, {"--fault", "corrupt:2@10", "--verify", "digest"});
  BOOST_TEST(digested.result.err.find("--verify digest") == std::string::npos);
  BOOST_TEST(only_fault(digested)["struck"] == true);
  for (const Json& error : digested.report["errors"]) {
    BOOST_TEST(error["code"] != "wrong_element");
    const bool is_named = error["message"].get<std::string>().find("source rank 2") != std::string::npos;
    BOOST_TEST((is_named || error["code"] == "cancelled"), error["message"]);
  }
}

BOOST_AUTO_TEST_CASE(boxes_that_nobody_holds_any_more_are_listed) {
  const Outcome outcome = run(unreplicated, {"--fault", "cut:2@10", "--transport", "tcp"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_REQUIRE(outcome.report["errors"].size() == 2);  // one for each target rank
  for (const Json& error : outcome.report["errors"]) {
    BOOST_TEST(error["code"] == "peer_lost");
    BOOST_REQUIRE(!error["gaps"].empty());
    for (const Json& gap : error["gaps"]) BOOST_TEST(gap["offset"][0].get<int>() >= 172);  // rank 2 holds 172 .. 255
  }
}

BOOST_AUTO_TEST_CASE(several_faults_strike_one_after_the_other) {
  const Outcome outcome = run(replicated, {"--fault", "slow:2@bind", "--fault", "kill:3@50"});
  require_complete(outcome);
  BOOST_REQUIRE(outcome.report["faults"].size() == 2);
  BOOST_TEST(outcome.report["faults"][0]["at_percent"].is_null());
  BOOST_TEST(outcome.report["faults"][0]["at_stage"] == "bind");
  BOOST_TEST(outcome.report["faults"][1]["struck"] == true);
}

// Nobody reads from rank 1.
BOOST_AUTO_TEST_CASE(a_fault_that_found_nothing_to_strike_is_reported) {
  const char* const idle = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [64, 64]}],
    "source": {"ranks": 2, "rules": {"*": {"boxes": {"0": [[[0, 0], [64, 64]]]}}}},
    "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j";
  const Outcome outcome = run(idle, {"--fault", "corrupt:1@0"});
  require_complete(outcome);
  BOOST_TEST(only_fault(outcome)["struck"] == false);
  BOOST_TEST(outcome.result.err.find("--fault corrupt:1@0 did not strike") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(faults_that_cannot_strike_are_refused) {
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--fault", "kill"}, "--fault kill: kind:R@P is expected, such as kill:3@50"},
      {{"--fault", "burn:1@50"}, "--fault burn:1@50: 'burn' is not one of kill, stop, cut, corrupt, slow, restep"},
      {{"--fault", "kill:1"}, "--fault kill:1: kind:R@P is expected"},
      {{"--fault", "kill@50"}, "--fault kill@50: kind:R@P is expected"},
      {{"--fault", ":1@50"}, "--fault :1@50: '' is not one of kill, stop, cut, corrupt, slow, restep"},
      {{"--fault", "kill:x@50"}, "--fault kill:x@50: 'x' is not a source rank"},
      {{"--fault", "kill:@50"}, "--fault kill:@50: '' is not a source rank"},
      {{"--fault", "kill: @50"}, "--fault kill: @50: ' ' is not a source rank"},
      {{"--fault", "kill:1,2@50"}, "--fault kill:1,2@50: '1,2' is not a source rank"},
      {{"--fault", "kill:1.5@50"}, "--fault kill:1.5@50: '1.5' is not a source rank"},
      {{"--fault", "kill:99999999999@50"}, "--fault kill:99999999999@50: '99999999999' is not a source rank"},
      {{"--fault", "kill:4@50"}, "--fault kill:4@50: source rank 4 is out of range 0..3"},
      {{"--fault", "kill:-1@50"}, "--fault kill:-1@50: source rank -1 is out of range 0..3"},
      {{"--fault", "kill:1@101"},
       "--fault kill:1@101: '101' is neither a percentage from 0 to 100 nor one of plan, bind, move, verify"},
      {{"--fault", "kill:1@"}, "'' is neither a percentage"},
      {{"--fault", "kill:1@50", "--transport", "loopback"}, "with --transport loopback all ranks share a process"},
      {{"--notice", "0"}, "--notice: a number of seconds above 0 is expected"},
  };
  for (const auto& [words, says] : refused) {
    const Outcome outcome = run(replicated, words);
    BOOST_TEST(outcome.result.exit_code == 2);
    BOOST_TEST(outcome.report.is_null());
    BOOST_TEST(outcome.result.err.find(says) != std::string::npos, outcome.result.err);
  }
}

BOOST_AUTO_TEST_CASE(a_fault_of_a_rank_that_is_lost_in_the_case_is_refused) {
  const Outcome outcome = run(with_loss(), {"--fault", "kill:3@50"});
  BOOST_TEST(outcome.result.exit_code == 2);
  BOOST_TEST(outcome.report.is_null());
  BOOST_TEST(outcome.result.err.find("--fault kill:3@50: source rank 3 is lost in this case, and holds nothing") !=
                 std::string::npos,
             outcome.result.err);
}

// --- drill ---

BOOST_AUTO_TEST_CASE(twenty_seeds_show_no_bug) {
  const std::string rows = "faults_test_rows." + std::to_string(::getpid()) + ".jsonl";
  const CommandResult result =
      command({"drill", std::string(std::getenv("CASE_FOLDER")) + "/drill-hsdp2x4-to-fsdp4xtp2.json", "--seeds", "0:20",
               "--transport", transport_under_test(), "--timeout", "120", "--notice", "2", "--json", rows},
              {});
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.out.find("20 seeds: ") != std::string::npos, result.out);
  std::ifstream file(rows);
  std::size_t struck = 0;
  int lines = 0;
  for (std::string line; std::getline(file, line); ++lines) {
    const Json row = Json::parse(line);
    BOOST_TEST(row["seed"] == lines);
    if (row["has_holders"] == true) BOOST_TEST(row["outcome"] == "completed", line);
    for (const Json& fault : row["faults"]) struck += fault["struck"] == true ? 1 : 0;
  }
  BOOST_TEST(lines == 20);
  BOOST_TEST(struck > 10U);
  std::remove(rows.c_str());
}

BOOST_AUTO_TEST_CASE(progress_names_the_source_that_a_rank_waits_for) {
  RunningCommand stopped({command_path(), "run", "-", "--transport", "tcp", "--rate", "2M", "--fault", "stop:2@move"},
                         unreplicated);
  BOOST_TEST(stopped.await_error_text(" from source rank 2 (", 1));  // a busy machine may name others before
  stopped.send(SIGINT);
  const CommandResult result = stopped.wait();
  BOOST_TEST(result.exit_code == 130);
  BOOST_TEST(result.err.find(" waits for ") != std::string::npos, result.err);
}

BOOST_AUTO_TEST_CASE(a_drill_refuses_bad_usage) {
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--seeds", "5"}, "--seeds 5: a:b with a < b is expected"},
      {{"--seeds", "5:5"}, "--seeds 5:5: a:b with a < b is expected"},
      {{"--kinds", "kill,burn"}, "--kinds kill,burn: different kinds of faults are expected"},
      {{"--transport", "loopback"}, "all ranks share a process"},
  };
  for (const auto& [more, says] : refused) {
    std::vector<std::string> words = {"drill", "-"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = command(words, replicated);
    BOOST_TEST(result.exit_code == 2);
    BOOST_TEST(result.err.find(says) != std::string::npos, result.err);
  }
}

BOOST_AUTO_TEST_SUITE_END()
