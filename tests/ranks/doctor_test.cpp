// SPDX-License-Identifier: Apache-2.0
// The paths of a case's bytes, as `shardwire doctor` reports them for real ranks.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <sstream>

#include "support/command.hpp"
#include "support/file.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(ranks_doctor)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;
using Pairs = std::map<std::pair<int, int>, double>;  // bytes by source and target

// Rows to columns: every rank reads from every other, in short runs.
const char* const rows_to_columns = R"j({"name": "doctor", "states": ["m"], "scalars": {"step": 7},
  "tensors": [{"fqn": "w", "shape": [300, 201]}, {"fqn": "s", "shape": [1]}],
  "source": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}},
  "target": {"ranks": 3, "rules": {"*": {"chunk": 1, "over": 3}}}})j";

std::string transport() {
  const char* name = std::getenv("TEST_TRANSPORT");
  return name == nullptr ? "auto" : name;
}

std::vector<Json> rows(const std::string& out) {
  std::vector<Json> all;
  std::istringstream lines(out);
  for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line));
  return all;
}

Pairs planned() {
  Pairs bytes;
  const Json plan = Json::parse(run_command({"plan", "--json", "-"}, rows_to_columns).out);
  for (const Json& piece : plan["pieces"]) {
    bytes[{piece["src"].get<int>(), piece["dst"].get<int>()}] += piece["bytes"].get<double>();
  }
  return bytes;
}

// Checks bytes and paths: the bytes of the plan, over the requested transport.
void check(const std::vector<Json>& found) {
  Pairs bytes;
  for (const Json& row : found) {
    const int source = row["source"].get<int>();
    const int target = row["target"].get<int>();
    bytes[{source, target}] += row["bytes"].get<double>();
    const auto path = row["path"].get<std::string>();
    if (source == target) {
      BOOST_TEST(path == "local");
    } else {
      BOOST_TEST(path.substr(0, path.find('/')) == (transport() == "tcp"        ? "tcp"
                                                    : transport() == "loopback" ? "loopback"
                                                                                : "shm"));
      BOOST_TEST(row["why_not"].get<std::string>().empty() == (transport() != "tcp"));
      BOOST_TEST(row["fallback_reason"] == (transport() == "tcp" ? "left_out" : "none"));
    }
    BOOST_TEST(row["predicted_seconds"].get<double>() > 0);
    BOOST_TEST(!row.contains("measured_seconds"));  // nothing has moved
    BOOST_TEST(row["carrier"] != "");
  }
  BOOST_TEST((bytes == planned()));
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_path_is_a_row_of_json) {
  const CommandResult result = run_command({"doctor", "-", "--json", "--transport", transport()}, rows_to_columns);
  BOOST_TEST(result.exit_code == 0, result.err);
  check(rows(result.out));
}

BOOST_AUTO_TEST_CASE(each_pair_is_a_line_for_people) {
  const CommandResult result = run_command({"doctor", "-", "--transport", transport()}, rows_to_columns);
  BOOST_TEST(result.exit_code == 0, result.err);
  BOOST_TEST(result.out.find("doctor: 3 source ranks -> 3 target ranks, 241 kB, none of it moved") == 0, result.out);
  for (const int target : {0, 1, 2}) {
    for (const int source : {0, 1, 2}) {
      const std::string pair = "\n   " + std::to_string(target) + " <- " + std::to_string(source) + "  ";
      const std::size_t at = result.out.find(pair);
      BOOST_REQUIRE_MESSAGE(at != std::string::npos, pair << " is not in\n" << result.out);
      const std::string line = result.out.substr(at + 1, result.out.find('\n', at + 1) - at - 1);
      BOOST_TEST(line.find(source == target ? "this process" : "26.8 kB") != std::string::npos, line);
      BOOST_TEST(line.find("B/s") != std::string::npos, line);
      BOOST_TEST((line.find("not better: shm: this session was told to use tcp") != std::string::npos) ==
                     (transport() == "tcp" && source != target),
                 line);
    }
  }
}

BOOST_AUTO_TEST_CASE(replicas_are_read_as_asked) {
  const char* const replicas = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}],
    "source": {"ranks": 2, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"replicated": true}}}})j";
  for (const char* rule : {"spread", "first"}) {
    const CommandResult result =
        run_command({"doctor", "-", "--json", "--transport", transport(), "--replicas", rule}, replicas);
    BOOST_TEST(result.exit_code == 0, result.err);
    std::size_t paths = 0;
    for (const Json& row : rows(result.out)) {
      if (!row.contains("path")) continue;  // a flag of this machine
      ++paths;
      BOOST_TEST(row["source"] == (rule == std::string("first") ? Json(0) : row["target"]));
    }
    BOOST_TEST(paths == 2U);
  }
}

// Expectations come from cost files that no machine meets.
BOOST_AUTO_TEST_CASE(measured_is_shown_beside_expected_and_flagged_if_it_is_far_longer) {
  constexpr double bytes = 4000 * 2000 * 4;  // of each target rank
  Json big = Json::parse(rows_to_columns);
  big["tensors"][0]["shape"] = {4000, 6000};
  for (const bool slow : {true, false}) {
    Json costs{{"format", "shardwire costs 2"}, {"machine", "none"}, {"costs", Json::array()}};
    for (const char* name : {"local", "loopback", "shm", "tcp"}) {
      for (const char* method : {"local", "mapped", "read", "sieved_read", "zcopy", "packed"}) {
        if ((std::string(name) == "local") != (std::string(method) == "local")) continue;
        costs["costs"].push_back({{"transport", name},
                                  {"memory", "host"},
                                  {"method", method},
                                  {"latency_seconds", 0},
                                  {"run_seconds", 0},
                                  {"bytes_per_second", slow ? 1e15 : 1e3}});
      }
    }
    const File file("costs.json", costs.dump());
    const CommandResult result = run_command({"doctor", "-", "--measure", "--json", "--transport", transport()},
                                             big.dump(), {{"SHARDWIRE_CALIBRATION", file.path()}});
    BOOST_TEST(result.exit_code == 0, result.err);
    std::set<std::string> subjects;
    std::vector<int> targets;
    std::map<int, double> longest;  // of the sources of each target rank
    for (const Json& row : rows(result.out)) {
      if (row.contains("predicted_seconds")) {
        const double seconds = row.at("measured_seconds").get<double>();
        BOOST_TEST(seconds > 0);
        double& known = longest[row["target"].get<int>()];
        known = std::max(known, seconds);
      }
      if (!row.contains("expected_seconds")) continue;
      targets.push_back(row["target"].get<int>());
      BOOST_TEST(longest[targets.back()] > 0);
      BOOST_TEST(longest[targets.back()] <= row["seconds"].get<double>());
      BOOST_TEST(row["bytes"].get<double>() == bytes);
      BOOST_TEST(row["seconds"].get<double>() > 0);
      for (const char* const which : {"", "expected_"}) {
        const auto figure = [&](const char* name) { return row.at(std::string(which) + name).get<double>(); };
        BOOST_TEST(figure("bytes_per_second") == bytes / figure("seconds"), boost::test_tools::tolerance(1e-9));
      }
      BOOST_TEST(row.contains("flag") == slow);
      if (!row.contains("flag")) continue;
      BOOST_TEST(row["flag"] == "slow path");
      BOOST_TEST(row["seconds"].get<double>() > 4 * row["expected_seconds"].get<double>());
      BOOST_TEST(row["says"].get<std::string>().find("were expected") != std::string::npos, row.dump());
      BOOST_TEST(row["says"].get<std::string>().find("; longest: source rank ") != std::string::npos, row.dump());
      subjects.insert(row["subject"].get<std::string>());
    }
    BOOST_TEST((targets == std::vector<int>{0, 1, 2}));
    BOOST_TEST(
        (subjects == (slow ? std::set<std::string>{"target 0", "target 1", "target 2"} : std::set<std::string>{})));
    const CommandResult text = run_command({"doctor", "-", "--measure", "--transport", transport()}, big.dump(),
                                           {{"SHARDWIRE_CALIBRATION", file.path()}});
    BOOST_TEST(text.out.find(", moved twice;") != std::string::npos, text.out);
    BOOST_TEST(text.out.find(" to themselves, measured ones, carrier\n") != std::string::npos, text.out);
    const std::size_t pair = text.out.find("\n   0 <- 1  ");
    BOOST_REQUIRE_MESSAGE(pair != std::string::npos, text.out);
    const std::size_t expected = text.out.find("B/s", pair);
    BOOST_TEST(text.out.find("B/s", expected + 1) < text.out.find('\n', pair + 1), text.out);
    const std::size_t title =
        text.out.find("\ntarget       bytes              measured              expected\n     0     32.0 MB ");
    BOOST_TEST(title != std::string::npos, text.out);
    for (const char* const line : {"\n     1     32.0 MB ", "\n     2     32.0 MB "}) {
      BOOST_TEST(text.out.find(line, title) != std::string::npos, text.out);
    }
    BOOST_TEST(text.out.find(slow ? "measured: to be looked at" : "measured: no rank took") != std::string::npos,
               text.out);
  }
  BOOST_TEST(run_command({"doctor", "--measure"}).exit_code == 2);
}

BOOST_AUTO_TEST_CASE(paths_that_are_not_as_expected_fail_the_command) {
  const std::string used = transport() == "auto" ? "shm" : transport();
  const std::string other = transport() == "tcp" ? "shm" : "tcp";
  const auto examine = [](const std::string& expected, bool json) {
    std::vector<std::string> words{"doctor", "-", "--transport", transport(), "--expect", expected};
    if (json) words.emplace_back("--json");
    return run_command(words, rows_to_columns);
  };
  const CommandResult good = examine("floor=1e-9,ceiling=1e9,transport=" + used, false);
  BOOST_TEST(good.exit_code == 0, good.err);
  BOOST_TEST(good.out.find(", moved twice;") != std::string::npos, good.out);
  BOOST_TEST(good.out.ends_with("\nevery path between ranks is as expected\n"), good.out);

  const CommandResult slow = examine("floor=1e9", true);
  BOOST_TEST(slow.exit_code == 1, slow.err);
  std::set<std::string> subjects;
  for (const Json& row : rows(slow.out)) {
    if (row.contains("flag") && row["flag"] == "below floor") subjects.insert(row["subject"].get<std::string>());
  }
  const std::set<std::string> pairs{"target 0 <- source 1", "target 0 <- source 2", "target 1 <- source 0",
                                    "target 1 <- source 2", "target 2 <- source 0", "target 2 <- source 1"};
  BOOST_TEST(subjects == pairs, boost::test_tools::per_element());

  const CommandResult fast = examine("ceiling=1e-9", false);
  BOOST_TEST(fast.exit_code == 1, fast.err);
  for (const std::string& pair : pairs) {
    BOOST_TEST(fast.out.find("\n  above ceiling " + pair + " moved ") != std::string::npos, fast.out);
  }

  const CommandResult elsewhere = examine("transport=" + other, false);
  BOOST_TEST(elsewhere.exit_code == 1, elsewhere.err);
  BOOST_TEST(elsewhere.out.find(", none of it moved;") != std::string::npos, elsewhere.out);
  if (transport() != "tcp") {  // within a host by design
    BOOST_TEST(elsewhere.out.find("\n  no path       the case has no path ") != std::string::npos, elsewhere.out);
    return;
  }
  for (const std::string& pair : pairs) {
    BOOST_TEST(elsewhere.out.find("\n  transport     " + pair + " is over tcp/") != std::string::npos, elsewhere.out);
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_a_launcher_are_joined) {
  if (transport() == "loopback") {  // threads of one process, which no launcher starts
    const CommandResult refused = run_command({"doctor", "-", "--transport", "loopback"}, rows_to_columns,
                                              {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}});
    BOOST_TEST(refused.exit_code == 2);
    BOOST_TEST(refused.err.find("joins threads of one process") != std::string::npos, refused.err);
    return;
  }
  const File text("case.json", rows_to_columns);
  const std::string port = std::to_string(free_port());
  std::vector<std::unique_ptr<RunningCommand>> members;
  for (int rank = 0; rank < 3; ++rank) {
    members.push_back(std::make_unique<RunningCommand>(
        std::vector<std::string>{command_path(), "doctor", text.path(), "--json", "--transport", transport()}, "",
        std::vector<std::pair<std::string, std::string>>{{"RANK", std::to_string(rank)},
                                                         {"WORLD_SIZE", "3"},
                                                         {"MASTER_ADDR", "127.0.0.1"},
                                                         {"SHARDWIRE_PORT", port}}));
  }
  for (int rank = 2; rank >= 0; --rank) {
    const CommandResult result = members[static_cast<std::size_t>(rank)]->wait();
    BOOST_TEST(result.exit_code == 0, result.err);
    if (rank == 0) {
      check(rows(result.out));
    } else {
      BOOST_TEST(result.out == "");
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_restore_would_fail_of_is_said) {
  Json lost = Json::parse(rows_to_columns);
  lost["source"]["lost"] = {1};
  const CommandResult result = run_command({"doctor", "-", "--json", "--transport", transport()}, lost.dump());
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(result.err.find("layout_mismatch") != std::string::npos, result.err);
  BOOST_TEST(result.out == "");
  BOOST_TEST(run_command({"doctor", "-", "--transport", transport()}, "{").exit_code == 2);
}

BOOST_AUTO_TEST_SUITE_END()
