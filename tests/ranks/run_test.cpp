// SPDX-License-Identifier: Apache-2.0
// `shardwire run` as users run it: real processes, or threads over loopback.
#include <sys/statvfs.h>
#include <sys/sysinfo.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "support/command.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(run_command_line)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

std::string transport_under_test() {
  const char* name = std::getenv("TEST_TRANSPORT");
  return name == nullptr ? "loopback" : name;
}

std::string report_path() {
  return "run_test_report." + std::to_string(::getpid()) + ".json";
}

struct Outcome {
  CommandResult result;
  Json report;  ///< null if no report was written
};

Outcome run(const std::string& text, std::vector<std::string> more = {}) {
  const std::string path = report_path();
  std::remove(path.c_str());
  std::vector<std::string> words = {"run", "-", "--transport", transport_under_test(), "--report", path};
  words.insert(words.end(), more.begin(), more.end());
  Outcome outcome{run_command(std::move(words), text, {{"SHARDWIRE_LOG", "error"}}), {}};
  if (std::ifstream file(path); file) outcome.report = Json::parse(file);
  std::remove(path.c_str());
  return outcome;
}

// 3 ranks of rows -> 4 ranks of columns, two dtypes, values of all kinds.
const char* const cross = R"j({
  "name": "cross", "dtype": "bf16", "states": ["m", "v"], "dtypes": {"v": "f32"},
  "scalars": {"step": 1000, "lr": 0.1, "none": null, "note": "x", "flag": true},
  "tensors": [{"fqn": "w", "shape": [40, 60]}, {"fqn": "n", "shape": [1]}, {"fqn": "empty", "shape": [0, 4]}],
  "source": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}},
  "target": {"ranks": 4, "rules": {"*": {"mesh": [4], "placements": ["S(1)"]}}}
})j";

const char* const with_a_lost_replica = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [16, 4]}, {"fqn": "s", "shape": []}],
  "source": {"ranks": 2, "lost": [1], "rules": {"*": {"replicated": true}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}
})j";

const char* const with_a_gap = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [8, 4]}],
  "source": {"ranks": 2, "lost": [1], "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}
})j";

void check_sums(const Json& report) {
  const Json& bytes = report["bytes"];
  BOOST_TEST(bytes["moved"].get<double>() + bytes["local"].get<double>() ==
             bytes["needed"].get<double>() + bytes["extra"].get<double>() + bytes["again"].get<double>());
  for (const Json& rank : report["ranks"]) {
    const Json& s = rank["seconds"];
    double sum = 0;
    for (const char* stage : {"join", "plan", "bind", "move", "verify", "commit"}) sum += s[stage].get<double>();
    BOOST_TEST(std::abs(sum - s["wall"].get<double>()) <= 0.02 * s["wall"].get<double>());
    for (const Json& peer : rank["peers"]) {
      BOOST_TEST(peer["measured"].get<double>() > 0);
      BOOST_TEST(peer["measured"].get<double>() <= s["move"].get<double>());
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_element_arrives_and_the_report_adds_up) {
  const Outcome outcome = run(cross);
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  const Json& report = outcome.report;
  BOOST_REQUIRE(report.is_object());
  BOOST_TEST(report["verified"] == true);
  BOOST_TEST(report["elements"] == 40 * 60 * 2);
  BOOST_TEST(report["bytes"]["needed"] == 40 * 60 * 6);
  BOOST_TEST(report["ranks"].size() == 4);
  BOOST_TEST(report["errors"].empty());
  BOOST_TEST(report["faults"].empty());
  check_sums(report);
  // The bytes that the plan calls remote have moved.
  const CommandResult planned = run_command({"plan", "--json", "--totals", "-"}, cross);
  BOOST_TEST(Json::parse(planned.out)["totals"]["remote"] == report["bytes"]["moved"]);
}

BOOST_AUTO_TEST_CASE(each_repeat_moves_new_values) {
  const Outcome outcome = run(cross, {"--repeat", "3", "--verify", "digest"});
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_TEST(outcome.report["repeats"].size() == 3);
  BOOST_TEST(outcome.report["seconds"]["join"] == 0);
  check_sums(outcome.report);
}

BOOST_AUTO_TEST_CASE(disjoint_ranks_move_everything) {
  const Outcome outcome = run(cross, {"--disjoint"});
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_TEST(outcome.report["bytes"]["moved"] == outcome.report["bytes"]["needed"]);
  BOOST_TEST(outcome.report["bytes"]["local"] == 0);
}

// FSDP 4 -> 3 of tensors with 12 and 20 rows.
const char* const four_to_three = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 50]}, {"fqn": "u", "shape": [20, 8]}, {"fqn": "n", "shape": [1]}],
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}}
})j";

// Rank 1's process survives and is free; there are more targets than source ranks. Each row has two replicas.
const char* const relabelled_onto_new_processes = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [8, 30]}],
  "source": {"ranks": 4, "lost": [1], "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}}},
  "target": {"ranks": 5, "rules": {"*": {"boxes": {"4": [[[0, 0], [4, 30]]], "0": [[[4, 0], [2, 30]]],
                                                   "2": [[[6, 0], [2, 30]]], "1": [[[0, 0], [1, 30]]]}}}}
})j";

BOOST_AUTO_TEST_CASE(relabelled_ranks_move_what_the_plan_says) {
  for (const char* text : {four_to_three, relabelled_onto_new_processes, cross}) {
    const CommandResult planned = run_command({"plan", "--json", "--totals", "-"}, text);
    const Json totals = Json::parse(planned.out)["totals"];
    const Outcome outcome = run(text, {"--relabel", "--repeat", "2", "--verify", "digest"});
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_REQUIRE(outcome.report.is_object());
    BOOST_TEST(outcome.report["verified"] == true);
    BOOST_TEST(outcome.report["bytes"]["moved"] == totals["relabelled_remote"]);
    BOOST_TEST(outcome.report["bytes"]["needed"] == totals["needed"]);
    check_sums(outcome.report);
    for (std::size_t t = 0; t < outcome.report["ranks"].size(); ++t)
      BOOST_TEST(outcome.report["ranks"][t]["rank"] == t);
  }
  const Json totals = Json::parse(run_command({"plan", "--json", "--totals", "-"}, four_to_three).out)["totals"];
  BOOST_TEST(totals["relabelled_remote"].get<int>() < totals["remote"].get<int>());
}

BOOST_AUTO_TEST_CASE(relabelling_a_case_with_gaps_tells_of_the_gaps) {
  const Outcome outcome = run(with_a_gap, {"--relabel", "--timeout", "30"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_REQUIRE(!outcome.report["errors"].empty());
  BOOST_TEST(outcome.report["errors"][0]["code"] == "layout_mismatch");
}

BOOST_AUTO_TEST_CASE(a_replica_stands_in_for_a_lost_rank) {
  const Outcome outcome = run(with_a_lost_replica);
  BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
  BOOST_TEST(outcome.report["bytes"]["moved"] == 128);
}

const char* const three_replicas = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}],
  "source": {"ranks": 3, "rules": {"*": {"replicated": true}}},
  "target": {"ranks": 3, "rules": {"*": {"replicated": true}}}
})j";

BOOST_AUTO_TEST_CASE(replicas_come_from_where_the_plan_says) {
  for (const char* rule : {"spread", "first"}) {
    const CommandResult planned = run_command({"plan", "--json", "--totals", "--replicas", rule, "-"}, three_replicas);
    const Json totals = Json::parse(planned.out)["totals"];
    const Outcome outcome = run(three_replicas, {"--replicas", rule});
    BOOST_TEST(outcome.result.exit_code == 0, outcome.result.err);
    BOOST_REQUIRE(outcome.report.is_object());
    BOOST_TEST(outcome.report["bytes"]["moved"] == totals["remote"]);
    BOOST_TEST(outcome.report["bytes"]["local"] == totals["local"]);
    for (const Json& rank : outcome.report["ranks"]) {
      BOOST_REQUIRE(rank["peers"].size() == 1U);
      BOOST_TEST(rank["peers"][0]["rank"] == (rule == std::string("first") ? Json(0) : rank["rank"]));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_region_without_holder_fails_the_job) {
  const Outcome outcome = run(with_a_gap, {"--timeout", "30"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_TEST(outcome.report["verified"] == false);
  BOOST_REQUIRE(!outcome.report["errors"].empty());
  BOOST_TEST(outcome.report["errors"][0]["code"] == "layout_mismatch");
  BOOST_TEST(outcome.result.err.find("w") != std::string::npos);
}

// 150 tensors of two states; rank 2 wants two rows of each that no rank holds.
std::string many_gaps() {
  Json tensors = Json::array();
  for (int t = 0; t < 150; ++t) tensors.push_back({{"fqn", "layers." + std::to_string(t) + ".w"}, {"shape", {6, 4}}});
  const Json by_rows = {{"ranks", 3}, {"rules", {{"*", {{"chunk", 0}, {"over", 3}}}}}};
  Json job = {{"states", {"m", "v"}}, {"tensors", std::move(tensors)}, {"source", by_rows}, {"target", by_rows}};
  job["source"]["lost"] = {2};
  return job.dump();
}

BOOST_AUTO_TEST_CASE(the_report_lists_every_region_without_holder) {
  const Outcome outcome = run(many_gaps(), {"--timeout", "60"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_REQUIRE(outcome.report.is_object());
  std::size_t with_gaps = 0;
  for (const Json& error : outcome.report["errors"]) {
    if (!error.contains("gaps")) continue;
    ++with_gaps;
    BOOST_TEST(error["code"] == "layout_mismatch");
    std::set<Json> missing;
    for (int t = 0; t < 150; ++t) {
      for (const char* state : {"m", "v"}) {
        const Json gap = {{"fqn", "layers." + std::to_string(t) + ".w"},
                          {"state", state},
                          {"offset", {4, 0}},
                          {"size", {2, 4}},
                          {"rank", 2}};
        missing.insert(gap);
      }
    }
    BOOST_TEST((std::set<Json>(error["gaps"].begin(), error["gaps"].end()) == missing));
    BOOST_TEST(error["gaps"].size() == 300U);
  }
  BOOST_TEST(with_gaps == 1U);
  for (const Json& error : outcome.report["errors"]) BOOST_TEST(error.size() == (error.contains("gaps") ? 3U : 2U));
}

boost::test_tools::assertion_result memory_can_be_limited(boost::unit_test::test_unit_id) {
  struct statvfs shm {};
  struct sysinfo machine {};
  const bool shared = ::statvfs("/dev/shm", &shm) == 0 && shm.f_bavail * shm.f_frsize >= (800UL << 20);
  const bool memory = ::sysinfo(&machine) == 0 && machine.freeram * machine.mem_unit >= (800UL << 20);
  const bool limit = !with_address_sanitizer && !with_thread_sanitizer;
  boost::test_tools::assertion_result result(shared && memory && limit);
  result.message() << (limit ? "800 MiB of memory are not free" : "a sanitizer takes all addresses that there are");
  return result;
}

// Rank 1 alone holds more than the shell's limit per process; the machine has enough.
BOOST_AUTO_TEST_CASE(a_rank_that_gets_no_memory_ends_the_job_in_seconds,
                     *boost::unit_test::precondition(memory_can_be_limited)) {
  const std::string path = report_path() + ".case";
  std::ofstream(path)
      << R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [1200, 131072]}, {"fqn": "v", "shape": [30], "rule": "v"}],
    "source": {"ranks": 3, "rules": {"*": {"boxes": {"1": [[[0, 0], [1200, 131072]]]}}, "v": {"chunk": 0, "over": 3}}},
    "target": {"ranks": 3, "rules": {"*": {"boxes": {}}, "v": {"chunk": 0, "over": 3}}}})j";
  RunningCommand command({"/bin/sh", "-c", "ulimit -v 500000; exec \"$0\" \"$@\"", command_path(), "run", path,
                          "--transport", transport_under_test(), "--report", report_path()});
  const CommandResult result = command.wait(std::chrono::seconds(40));
  BOOST_TEST(!result.timed_out);
  BOOST_TEST(result.exit_code == 1);
  Json report;
  if (std::ifstream file(report_path()); file) report = Json::parse(file);
  BOOST_REQUIRE(report.is_object());
  BOOST_TEST(report["elements"] == 0);  // the other ranks do not begin
  for (const Json& error : report["errors"]) {
    const bool its_own = error["message"].get<std::string>().find("rank 1:") != std::string::npos;
    BOOST_TEST(error["code"] == (its_own ? "out_of_resources" : "cancelled"), error["message"]);
  }
  BOOST_TEST(report["errors"].size() == 3U);
  std::remove(path.c_str());
  std::remove(report_path().c_str());
}

BOOST_AUTO_TEST_CASE(whatever_fails_before_the_ranks_start_is_in_the_report) {
  const char* const too_large_to_assign =
      R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [1152921504606846976]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}}, "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j";
  const Outcome outcome = run(too_large_to_assign, {"--relabel"});
  BOOST_TEST(outcome.result.exit_code == 1);
  BOOST_REQUIRE(outcome.report.is_object());
  BOOST_TEST(outcome.report["verified"] == false);
  BOOST_TEST(outcome.report["errors"][0]["code"] == "invalid_argument");
}

BOOST_AUTO_TEST_CASE(bad_usage_writes_no_report) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--fault", "burn:0@50"},
                                               {"--relabel", "--disjoint"},
                                               {"--relabel", "--replicas", "first"},
                                               {"--replicas", "compare"},
                                               {"--memory", "cuda"},
                                               {"--staging", "0"},
                                               {"--repeat", "0"},
                                               {"--timeout", "-1"},
                                               {"--transport", "nccl"}}) {
    const Outcome outcome = run(cross, more);
    BOOST_TEST(outcome.result.exit_code == 2);
    BOOST_TEST(outcome.report.is_null());
    BOOST_TEST(outcome.result.out == "");
  }
  BOOST_TEST(run_command({"run", "-", "--report", "/nonexistent/report.json"}, cross).exit_code == 2);
}

BOOST_AUTO_TEST_CASE(nccl_is_for_device_memory) {
  for (const char* const names : {"nccl", "tcp,nccl"}) {
    const auto result = run_command({"run", "-", "--transport", names, "--memory", "host"}, cross);
    BOOST_TEST(result.exit_code == 2);
    BOOST_TEST(result.err.find("nccl: it moves device memory") != std::string::npos, result.err);
  }
}

BOOST_AUTO_TEST_CASE(an_interrupt_ends_all_ranks) {
  // Too slow to finish by itself.
  const std::string slow = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [4000, 4000]}],
    "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
    "target": {"ranks": 2, "rules": {"*": {"mesh": [2], "placements": ["S(1)"]}}}})j";
  const std::string path = report_path() + ".case";
  std::ofstream(path) << slow;
  RunningCommand command({command_path(), "run", path, "--transport", transport_under_test(), "--rate", "1K"}, "",
                         {{"SHARDWIRE_LOG", "info"}});
  BOOST_REQUIRE(command.await_error_text("restore of '", 2));
  command.send(SIGINT);
  const CommandResult result = command.wait();
  BOOST_TEST(result.exit_code == 130);
  BOOST_TEST(!result.timed_out);
  BOOST_TEST(result.err.find("interrupted; all ranks are ended") != std::string::npos);
  std::remove(path.c_str());
}

BOOST_AUTO_TEST_SUITE_END()
