// SPDX-License-Identifier: Apache-2.0
// `shardwire plan` as its users run it.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <ostream>

#include "support/command.hpp"

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

std::string named_case(const std::string& name) {
  const char* folder = std::getenv("CASE_FOLDER");
  BOOST_REQUIRE(folder != nullptr);
  return std::string(folder) + "/" + name + ".json";
}

CommandResult plan(std::vector<std::string> arguments, std::string input = {}) {
  arguments.insert(arguments.begin(), "plan");
  return run_command(std::move(arguments), std::move(input));
}

Json plan_json(std::vector<std::string> arguments, std::string input = {}) {
  arguments.emplace_back("--json");
  const CommandResult result = plan(std::move(arguments), std::move(input));
  BOOST_TEST(result.err == "");
  BOOST_REQUIRE(result.exit_code == 0);
  return Json::parse(result.out);
}

// w (4, 6) of 2-byte elements: two row halves -> three column thirds; n goes by value.
const char* const small = R"j({
  "name": "small", "dtype": "bf16", "states": ["m"],
  "tensors": [{"fqn": "w", "shape": [4, 6]}, {"fqn": "n", "shape": [1]}],
  "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 3, "rules": {"*": {"mesh": [3], "placements": ["S(1)"]}}}
})j";

const char* const with_gaps = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [8, 4]}],
  "source": {"ranks": 2, "lost": [1], "rules": {"*": {"chunk": 0, "over": 2}}},
  "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}
})j";

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_command)

BOOST_AUTO_TEST_CASE(totals_of_a_small_case_are_those_worked_out_by_hand) {
  const Json json = plan_json({"-"}, small);
  // Each target wants a 4 x 2 column: 16 bytes, 8 from either source, 2 rows of 2 elements each.
  BOOST_TEST(json["totals"]["needed"] == 48);
  BOOST_TEST(json["totals"]["local"] == 16);  // 0 -> 0 and 1 -> 1
  BOOST_TEST(json["totals"]["remote"] == 32);
  BOOST_TEST(json["totals"]["max_egress"] == 16);
  BOOST_TEST(json["totals"]["max_ingress"] == 16);  // target 2 holds nothing
  BOOST_TEST(json["totals"]["runs"] == 12);
  BOOST_TEST(json["totals"]["relabelled_remote"].is_null());
  BOOST_TEST(json["labels"].is_null());
  BOOST_REQUIRE(json["pieces"].size() == 6);
  for (const Json& piece : json["pieces"]) {
    BOOST_TEST(piece["fqn"] == "w");
    BOOST_TEST(piece["state"] == "m");
    const Json offset = {piece["src"].get<int>() * 2, piece["dst"].get<int>() * 2};
    BOOST_TEST(piece["offset"] == offset);
    BOOST_TEST(piece["size"] == Json::parse("[2, 2]"));
    BOOST_TEST(piece["bytes"] == 8);
    BOOST_TEST(piece.size() == 7);
  }
}

BOOST_AUTO_TEST_CASE(one_rank_has_no_facts_of_the_whole_job) {
  const Json json = plan_json({"--rank", "1", "-"}, small);
  BOOST_TEST(json["pieces"].size() == 2);
  BOOST_TEST(json["totals"]["needed"] == 16);
  BOOST_TEST(json["totals"]["remote"] == 8);
  BOOST_TEST(json["totals"]["max_egress"].is_null());
  BOOST_TEST(json["totals"]["max_ingress"] == 8);
  BOOST_TEST(json["totals"]["runs"] == 4);
}

BOOST_AUTO_TEST_CASE(totals_leave_out_pieces) {
  const Json json = plan_json({"--totals", "-"}, small);
  BOOST_TEST(!json.contains("pieces"));
  BOOST_TEST(json["totals"]["needed"] == 48);
}

BOOST_AUTO_TEST_CASE(the_table_is_for_people) {
  const CommandResult result = plan({"-"}, small);
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(result.out.find("small: 2 tensors x 1 states, 2 source ranks -> 3 target ranks") == 0);
  BOOST_TEST(result.out.find("66.67 %") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(all_gaps_of_all_ranks_are_listed) {
  const CommandResult result = plan({"--json", "-"}, with_gaps);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.find("  w m [4:6, 0:4] wanted by rank 2\n") != std::string::npos);
  BOOST_TEST(result.err.find("  w m [6:8, 0:4] wanted by rank 3\n") != std::string::npos);
  BOOST_TEST(plan({"--rank", "1", "-"}, with_gaps).exit_code == 0);
  BOOST_TEST(plan({"--rank", "2", "-"}, with_gaps).exit_code == 1);
}

BOOST_AUTO_TEST_CASE(a_job_whose_tensors_all_go_by_value_has_no_pieces) {
  const Json json = plan_json({"-"}, R"j({"tensors": [{"fqn": "n", "shape": []}],
    "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}, "target": {"ranks": 1, "rules": {"*": {"boxes": {}}}}})j");
  BOOST_TEST(json["pieces"].empty());
  BOOST_TEST(json["totals"]["needed"] == 0);
}

// The model cases, whole. Percentages are of the model's state, means over ranks that hold something.
struct Known {
  const char* name;
  double state_bytes;
  double pieces;
  double runs;
  double runs_within;
  double remote_percent;
};
std::ostream& operator<<(std::ostream& out, const Known& known) {
  return out << known.name;
}

constexpr double state_8b = 8'030'261'248.0 * 12;
constexpr double state_70b = 70'553'706'496.0 * 12;
const Known known_cases[] = {
    {"r1", state_8b, 1890, 1890, 0.5, 75.02},  {"r2", state_8b, 873, 873, 0.5, 93.75},
    {"r3", state_8b, 1805, 1805, 0.5, 93.96},  {"r4", state_8b, 3582, 788e3, 500, 26.35},
    {"r5", state_8b, 1260, 197e3, 500, 67.48}, {"r6", state_70b, 8910, 497e3, 500, 87.51},
};

BOOST_DATA_TEST_CASE(model_cases_have_their_known_totals, boost::unit_test::data::make(known_cases), known) {
  const Json json = plan_json({named_case(known.name)});
  std::map<int, std::size_t> pieces;
  for (const Json& piece : json["pieces"]) ++pieces[piece["dst"].get<int>()];
  const auto holding = static_cast<double>(pieces.size());
  BOOST_TEST(std::abs(static_cast<double>(json["pieces"].size()) / holding - known.pieces) <= 0.5);
  BOOST_TEST(std::abs(json["totals"]["runs"].get<double>() / holding - known.runs) <= known.runs_within);
  BOOST_TEST(std::abs(100 * json["totals"]["remote"].get<double>() / known.state_bytes - known.remote_percent) <=
             0.0051);
  BOOST_TEST(json["totals"]["needed"].get<double>() ==
             json["totals"]["local"].get<double>() + json["totals"]["remote"].get<double>());
}

BOOST_AUTO_TEST_SUITE_END()
