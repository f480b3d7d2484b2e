// SPDX-License-Identifier: Apache-2.0
// `shardwire plan` as users run it.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "support/command.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(plan_command)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

std::string named_case(const std::string& name) {
  const char* folder = std::getenv("CASE_FOLDER");
  BOOST_REQUIRE(folder != nullptr);
  return std::string(folder) + "/" + name + ".json";
}

// A file in the working folder, removed by the destructor.
class TextFile {
 public:
  TextFile(const std::string& name, const std::string& text)
      : path_("plan_test." + std::to_string(::getpid()) + "." + name) {
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  TextFile(const TextFile&) = delete;
  TextFile& operator=(const TextFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

CommandResult plan(std::vector<std::string> arguments, std::string input = {}) {
  arguments.insert(arguments.begin(), "plan");
  return run_command(std::move(arguments), std::move(input));
}

std::string announced(std::size_t pieces) {
  return "shardwire: " + std::to_string(pieces) + (pieces == 1 ? " piece follows\n" : " pieces follow\n");
}

Json plan_json(std::vector<std::string> arguments, std::string input = {}) {
  arguments.emplace_back("--json");
  const CommandResult result = plan(std::move(arguments), std::move(input));
  BOOST_REQUIRE(result.exit_code == 0);
  Json json = Json::parse(result.out);
  BOOST_TEST(result.err == (json.contains("pieces") ? announced(json["pieces"].size()) : ""));
  return json;
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

BOOST_AUTO_TEST_CASE(totals_of_a_small_case_are_those_worked_out_by_hand) {
  const Json json = plan_json({"-"}, small);
  // Each target wants a 4 x 2 column: 16 bytes, 8 from either source, 2 rows of 2 elements each.
  BOOST_TEST(json["totals"]["needed"] == 48);
  BOOST_TEST(json["totals"]["local"] == 16);  // 0 -> 0 and 1 -> 1
  BOOST_TEST(json["totals"]["remote"] == 32);
  BOOST_TEST(json["totals"]["max_egress"] == 16);
  BOOST_TEST(json["totals"]["max_ingress"] == 16);  // target 2 holds nothing
  BOOST_TEST(json["totals"]["runs"] == 12);
  BOOST_TEST(json["totals"]["relabelled_remote"] == 32);  // any two targets share 8 bytes with two sources
  BOOST_TEST(json["labels"] == Json::parse("[0, 1, -1]"));
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
  BOOST_TEST(json["totals"]["relabelled_remote"].is_null());
  BOOST_TEST(json["labels"].is_null());
  BOOST_TEST(plan_json({"--rank", "1", "--relabel", "-"}, small)["labels"].is_null());
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

BOOST_AUTO_TEST_CASE(how_many_pieces_there_are_is_said_first) {
  const CommandResult one = plan({"--json", "--rank", "1", "-"}, R"j({
    "states": ["m"], "tensors": [{"fqn": "w", "shape": [4]}],
    "source": {"ranks": 1, "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}})j");
  BOOST_TEST(one.exit_code == 0);
  BOOST_TEST(one.err == announced(1));
  BOOST_TEST(plan({"--json", "-"}, small).err == announced(6));
  BOOST_TEST(plan({"--json", "--totals", "-"}, small).err == "");
  BOOST_TEST(plan({"-"}, small).err == "");
}

BOOST_AUTO_TEST_CASE(all_gaps_of_all_ranks_are_listed) {
  const CommandResult result = plan({"--json", "-"}, with_gaps);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(Json::parse(result.out) == Json::parse(R"j({"gaps": [
    {"fqn": "w", "state": "m", "offset": [4, 0], "size": [2, 4], "rank": 2},
    {"fqn": "w", "state": "m", "offset": [6, 0], "size": [2, 4], "rank": 3}]})j"));
  BOOST_TEST(plan({"-"}, with_gaps).out == "");
  BOOST_TEST(result.err.find("  w m [4:6, 0:4] wanted by rank 2\n") != std::string::npos);
  BOOST_TEST(result.err.find("  w m [6:8, 0:4] wanted by rank 3\n") != std::string::npos);
  BOOST_TEST(plan({"--rank", "1", "-"}, with_gaps).exit_code == 0);
  BOOST_TEST(plan({"--rank", "2", "-"}, with_gaps).exit_code == 1);
}

// One source rank, lost: w of 4 elements, and two one-element tensors, held only by a surviving rank.
const char* const nothing_left = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [4]}, {"fqn": "n", "shape": [1, 1]}, {"fqn": "s", "shape": []}],
  "source": {"ranks": 1, "lost": [0], "rules": {"*": {"replicated": true}}},
  "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}
})j";

BOOST_AUTO_TEST_CASE(one_element_tensors_without_a_source_rank_are_gaps) {
  const CommandResult result = plan({"--json", "-"}, nothing_left);
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(Json::parse(result.out) == Json::parse(R"j({"gaps": [
    {"fqn": "w", "state": "m", "offset": [0], "size": [2], "rank": 0},
    {"fqn": "w", "state": "m", "offset": [2], "size": [2], "rank": 1},
    {"fqn": "n", "state": "m", "offset": [0, 0], "size": [1, 1], "rank": 0},
    {"fqn": "s", "state": "m", "offset": [], "size": [], "rank": 0},
    {"fqn": "n", "state": "m", "offset": [0, 0], "size": [1, 1], "rank": 1},
    {"fqn": "s", "state": "m", "offset": [], "size": [], "rank": 1}]})j"));
  BOOST_TEST(result.err.find("layout_mismatch: 6 wanted regions have no holder:\n") != std::string::npos);
  BOOST_TEST(result.err.find("  n m [0:1, 0:1] wanted by rank 1\n") != std::string::npos);
  BOOST_TEST(plan({"--rank", "1", "-"}, nothing_left).err.find("3 wanted regions") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_job_of_one_element_tensors_alone_has_gaps_too) {
  const auto job = [](const std::string& lost) {
    return R"j({"states": ["m", "v"], "tensors": [{"fqn": "n", "shape": [1]}], "source": {"ranks": 2, "lost": )j" +
           lost + R"j(, "rules": {"*": {"boxes": {}}}}, "target": {"ranks": 1, "rules": {"*": {"boxes": {}}}}})j";
  };
  BOOST_TEST(plan({"-"}, job("[1]")).exit_code == 0);
  const CommandResult result = plan({"--json", "-"}, job("[0, 1]"));
  BOOST_TEST(result.exit_code == 1);
  BOOST_TEST(Json::parse(result.out)["gaps"].size() == 2);
}

BOOST_AUTO_TEST_CASE(a_job_whose_tensors_all_go_by_value_has_no_pieces) {
  const Json json = plan_json({"-"}, R"j({"tensors": [{"fqn": "n", "shape": []}],
    "source": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}, "target": {"ranks": 1, "rules": {"*": {"boxes": {}}}}})j");
  BOOST_TEST(json["pieces"].empty());
  BOOST_TEST(json["totals"]["needed"] == 0);
}

// 4 -> 3 row shards of 12 rows, 4 per target. Target 0 has 3 of them in source 0, target 1 has 2 each in sources 1 and
// 2, target 2 has 3 in source 3.
const char* const four_to_three = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}], "hosts": 2,
  "source": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}},
  "target": {"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}}
})j";

const char* const fabric_text = R"j({"name": "slow",
  "copy": {"latency_microseconds": 0, "gigabytes_per_second": 1},
  "host": {"latency_microseconds": 1, "gigabytes_per_second": 0.008},
  "network": {"latency_microseconds": 2, "gigabytes_per_second": 0.008, "links": 1}})j";

BOOST_AUTO_TEST_CASE(the_best_assignment_is_shown) {
  const Json json = plan_json({"--totals", "-"}, four_to_three);
  BOOST_TEST(json["totals"]["remote"] == 48);             // 6 of 12 rows stay
  BOOST_TEST(json["totals"]["relabelled_remote"] == 32);  // 8 of 12 stay
  BOOST_TEST(json["labels"] == Json::parse("[0, 1, 3]"));
  const CommandResult result = plan({"--relabel", "-"}, four_to_three);
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(result.out.find("relabelled") != std::string::npos);
  BOOST_TEST(result.out.find("best assignment: target ranks 0-1 in 0-1, 2 in 3\n") != std::string::npos, result.out);
}

// 4,097 source ranks of two elements each -> 2 target ranks.
BOOST_AUTO_TEST_CASE(beyond_4096_ranks_the_best_assignment_is_for_those_who_ask) {
  const std::string many = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [8194]}],
    "source": {"ranks": 4097, "rules": {"*": {"chunk": 0, "over": 4097}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}})j";
  const Json unasked = plan_json({"--totals", "-"}, many);
  BOOST_TEST(unasked["totals"]["relabelled_remote"].is_null());
  BOOST_TEST(unasked["labels"].is_null());
  const Json asked = plan_json({"--totals", "--relabel", "-"}, many);
  BOOST_TEST(asked["totals"]["relabelled_remote"] == 4 * (8194 - 4));
  BOOST_TEST(asked["labels"][0] == 0);
  BOOST_TEST(asked["labels"][1].get<int>() >= 2048);
}

BOOST_AUTO_TEST_CASE(a_lost_process_is_not_chosen) {
  std::string text = R"j({"states": ["m"], "tensors": [{"fqn": "w", "shape": [8]}],
    "source": {"ranks": 2, "lost": [0], "rules": {"*": {"replicated": true}}},
    "target": {"ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}}}})j";
  const Json json = plan_json({"--totals", "-"}, text);
  BOOST_TEST(json["totals"]["relabelled_remote"] == 16);
  BOOST_TEST((json["labels"] == Json::parse("[-1, 1]") || json["labels"] == Json::parse("[1, -1]")));
}

BOOST_AUTO_TEST_CASE(the_time_on_a_fabric_is_predicted) {
  const TextFile fabric("fabric.json", fabric_text);
  const Json json = plan_json({"--fabric", fabric.path(), "--totals", "-"}, four_to_three);
  // Rows of 8 bytes, 2 ranks per host: host 0 has sources and targets 0 and 1, host 1 source 2 and 3 and target 2.
  // 1 -> 0 8 bytes, 2 -> 1 16 bytes, 3 -> 2 24 bytes, 2 -> 2 8 bytes; a link takes 1 us for 8 bytes.
  const Json& forecast = json["fabric"];
  BOOST_TEST(forecast["hosts"] == 2);
  BOOST_TEST(forecast["hosts_given"] == true);
  BOOST_TEST(forecast["bytes"] == Json::parse(R"j({"in_processes": 48, "within_hosts": 32, "between_hosts": 16})j"));
  BOOST_CHECK_CLOSE_FRACTION(forecast["seconds"].get<double>(), 4e-6, 1e-9);
  BOOST_CHECK_CLOSE_FRACTION(forecast["bound_seconds"].get<double>(), 4e-6, 1e-9);
  BOOST_TEST(json["totals"]["remote"] == 48);

  const Json moved = plan_json({"--fabric", fabric.path(), "--relabel", "--totals", "-"}, four_to_three)["fabric"];
  // 1 -> 0 8 bytes, 2 -> 1 16 bytes, 2 -> 3 8 bytes.
  BOOST_TEST(moved["relabelled"] == true);
  BOOST_TEST(moved["bytes"] == Json::parse(R"j({"in_processes": 64, "within_hosts": 16, "between_hosts": 16})j"));
  const CommandResult table = plan({"--fabric", fabric.path(), "-"}, four_to_three);
  BOOST_TEST(table.out.find("fabric slow: 2 hosts of 2 ranks\n") != std::string::npos, table.out);
  BOOST_TEST(table.out.find("4 us   1.000 of the bound") != std::string::npos, table.out);
  BOOST_TEST(table.out.find("host 1 -> host 0: 16 B") != std::string::npos, table.out);
}

BOOST_AUTO_TEST_CASE(without_hosts_every_rank_is_one) {
  const TextFile fabric("fabric.json", fabric_text);
  const Json json = plan_json({"--fabric", fabric.path(), "-"}, small);
  BOOST_TEST(json["fabric"]["hosts_given"] == false);
  BOOST_TEST(json["fabric"]["bytes"]["within_hosts"] == 0);
  BOOST_TEST(json["fabric"]["bytes"]["between_hosts"] == 32);
  BOOST_TEST(plan({"--fabric", fabric.path(), "-"}, small).out.find("neither the case nor the fabric says how many") !=
             std::string::npos);
}

// The published figures of a machine, and the reference cases of the project.
BOOST_DATA_TEST_CASE(the_time_of_published_cases_is_predicted_beside_its_bound, boost::unit_test::data::xrange(1, 9),
                     number) {
  const std::string fabric = named_case("../fabrics/connectx7-8x400g");
  const std::string job = named_case("r" + std::to_string(number));
  const Json forecast = plan_json({"--fabric", fabric, "--totals", job})["fabric"];
  const double seconds = forecast["seconds"].get<double>();
  const double bound = forecast["bound_seconds"].get<double>();
  BOOST_TEST(std::isfinite(seconds));
  BOOST_TEST(bound > 0);
  BOOST_TEST(seconds >= bound);
  BOOST_TEST(seconds <= 2 * bound);
  BOOST_TEST(forecast["ranks_per_host"] == 8);
  // No rank exceeds the rate of a NIC of its own, or its GPU's rate within a host.
  const Json& bytes = forecast["bytes"];
  const double hosts = forecast["hosts"].get<double>();
  BOOST_TEST(bound >= bytes["between_hosts"].get<double>() / (hosts * 8 * 50e9));
  BOOST_TEST(bound >= bytes["within_hosts"].get<double>() / (hosts * 8 * 450e9));
  BOOST_TEST(forecast["sources"].size() >= 3);
  const CommandResult table = plan({"--fabric", fabric, "--totals", job});
  BOOST_TEST(table.out.find("predicted") != std::string::npos, table.out);
  BOOST_TEST(table.out.find("bound") != std::string::npos, table.out);
  BOOST_TEST(table.out.find("https://") != std::string::npos, table.out);
}

BOOST_AUTO_TEST_CASE(a_bad_fabric_file_is_bad_usage) {
  const TextFile fabric("fabric.json", R"j({"copy": {"latency_microseconds": "fast"}})j");
  const CommandResult result = plan({"--fabric", fabric.path(), "-"}, small);
  BOOST_TEST(result.exit_code == 2);
  BOOST_TEST(result.out == "");
  BOOST_TEST(result.err.find(fabric.path() + ": copy.latency_microseconds: a number is expected") != std::string::npos);
}

// The complete model cases. Percentages are of the model's state, as means over the ranks that hold any.
struct Known {
  const char* name;
  double state_bytes;
  double pieces;
  double runs;
  double runs_within;
  double remote_percent;
  double relabelled_percent;
};
std::ostream& operator<<(std::ostream& out, const Known& known) {
  return out << known.name;
}

constexpr double state_8b = 8'030'261'248.0 * 12;
constexpr double state_70b = 70'553'706'496.0 * 12;
const Known known_cases[] = {
    {"r1", state_8b, 1890, 1890, 0.5, 75.02, 33.31},  {"r2", state_8b, 873, 873, 0.5, 93.75, 50.00},
    {"r3", state_8b, 1805, 1805, 0.5, 93.96, 33.38},  {"r4", state_8b, 3582, 788e3, 500, 26.35, 26.35},
    {"r5", state_8b, 1260, 197e3, 500, 67.48, 26.33},
};
const Known largest_case{"r6", state_70b, 8910, 497e3, 500, 87.51, 33.72};

// Pieces of a printed plan, and target ranks that have any. Searches the text, since parsing a plan with half a million
// pieces is slow.
std::pair<std::size_t, std::size_t> pieces_and_ranks(std::string_view json) {
  constexpr std::string_view key = "\"dst\":";
  std::size_t pieces = 0;
  std::set<std::string_view> ranks;
  for (std::size_t at = json.find(key); at != json.npos; at = json.find(key, at)) {
    at += key.size();
    ranks.insert(json.substr(at, json.find(',', at) - at));
    ++pieces;
  }
  return {pieces, ranks.size()};
}

void check_totals(const Known& known) {
  const Json json = plan_json({"--totals", named_case(known.name)});
  const CommandResult whole = plan({"--json", named_case(known.name)});
  BOOST_REQUIRE(whole.exit_code == 0);
  const auto [pieces, ranks] = pieces_and_ranks(whole.out);
  BOOST_TEST(whole.err == announced(pieces));
  const auto holding = static_cast<double>(ranks);
  BOOST_TEST(std::abs(static_cast<double>(pieces) / holding - known.pieces) <= 0.5);
  BOOST_TEST(std::abs(json["totals"]["runs"].get<double>() / holding - known.runs) <= known.runs_within);
  BOOST_TEST(std::abs(100 * json["totals"]["remote"].get<double>() / known.state_bytes - known.remote_percent) <=
             0.0051);
  BOOST_TEST(std::abs(100 * json["totals"]["relabelled_remote"].get<double>() / known.state_bytes -
                      known.relabelled_percent) <= 0.0051);
  BOOST_TEST(json["totals"]["needed"].get<double>() ==
             json["totals"]["local"].get<double>() + json["totals"]["remote"].get<double>());
}

BOOST_DATA_TEST_CASE(model_cases_have_their_known_totals, boost::unit_test::data::make(known_cases), known) {
  check_totals(known);
}

boost::test_tools::assertion_result plans_are_fast(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result fast(!with_address_sanitizer);
  fast.message() << "half a million pieces take minutes with a sanitizer";
  return fast;
}

BOOST_AUTO_TEST_CASE(the_largest_model_case_has_its_known_totals, *boost::unit_test::precondition(plans_are_fast)) {
  check_totals(largest_case);
}

// Larger cases, by their totals only.
struct LargeCase {
  const char* name;
  double state_bytes;
  double remote_percent;
  double relabelled_percent;
};
std::ostream& operator<<(std::ostream& out, const LargeCase& known) {
  return out << known.name;
}

constexpr double state_405b = 405'853'388'800.0 * 12;
const LargeCase large_cases[] = {{"r7", state_70b, 56.52, 26.51},
                                 {"r8", state_70b, 99.36, 83.03},
                                 {"r9", state_70b, 98.87, 60.02},
                                 {"r10", state_405b, 93.49, 28.49},
                                 {"r11", state_405b, 93.81, 50.40}};

BOOST_DATA_TEST_CASE(large_model_cases_have_their_known_assignment, boost::unit_test::data::make(large_cases), known) {
  const Json json = plan_json({"--totals", named_case(known.name)});
  const auto percent = [&](const char* name) { return 100 * json["totals"][name].get<double>() / known.state_bytes; };
  BOOST_TEST(std::abs(percent("remote") - known.remote_percent) <= 0.0051);
  BOOST_TEST(std::abs(percent("relabelled_remote") - known.relabelled_percent) <= 0.0051);
  std::set<int> used;
  for (const Json& label : json["labels"]) {
    if (label != -1) BOOST_TEST(used.insert(label.get<int>()).second);
  }
  BOOST_TEST(used.size() == json["labels"].size());
}

boost::test_tools::assertion_result memory_can_be_limited(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!with_address_sanitizer && !with_thread_sanitizer);
  result.message() << "a sanitizer takes all addresses that there are";
  return result;
}

struct Many {
  const char* name;
  std::size_t pieces;
  const char* tensors;
  const char* source;
  const char* target;
};
std::ostream& operator<<(std::ostream& out, const Many& many) {
  return out << many.name;
}

// Each once took 440 MiB or more, because the plan stored data per piece or replica.
const Many many_pieces[] = {
    {"replicas for many ranks", 1'200'000,
     R"j([{"fqn": "a", "shape": [1024]}, {"fqn": "b", "shape": [1025]}, {"fqn": "c", "shape": [1026]},
          {"fqn": "d", "shape": [1027]}])j",
     R"j({"ranks": 4, "rules": {"*": {"replicated": true}}})j",
     R"j({"ranks": 300000, "rules": {"*": {"replicated": true}}})j"},
    {"as many replicas as ranks", 300'000, R"j([{"fqn": "a", "shape": [1024]}])j",
     R"j({"ranks": 300000, "rules": {"*": {"replicated": true}}})j",
     R"j({"ranks": 300000, "rules": {"*": {"replicated": true}}})j"},
    {"many pieces for one rank", 524'288, R"j([{"fqn": "a", "shape": [1024, 512]}])j",
     R"j({"ranks": 256, "rules": {"*": {"blockcyclic": {"block": [1, 1], "grid": [16, 16], "source": [0, 0]}}}})j",
     R"j({"ranks": 1, "rules": {"*": {"replicated": true}}})j"},
};

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(memory_can_be_limited))
BOOST_DATA_TEST_CASE(memory_does_not_grow_with_the_number_of_pieces, boost::unit_test::data::make(many_pieces), many) {
  const TextFile file("many.json", std::string(R"j({"states": ["m"], "tensors": )j") + many.tensors +
                                       ", \"source\": " + many.source + ", \"target\": " + many.target + "}");
  const std::string line = "ulimit -v 262144; exec \"$0\" plan --json $1 >/dev/null";
  const CommandResult result = RunningCommand({"/bin/sh", "-c", line, command_path(), file.path()}).wait();
  BOOST_TEST(result.exit_code == 0);
  BOOST_TEST(result.err == announced(many.pieces));
}

// --- the source of replicas ---

const char* const three_replicas = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}],
  "source": {"ranks": 3, "rules": {"*": {"replicated": true}}},
  "target": {"ranks": 3, "rules": {"*": {"replicated": true}}}})j";

BOOST_AUTO_TEST_CASE(replicas_come_from_the_own_process_or_from_the_lowest_rank) {
  for (const char* rule : {"spread", "first"}) {
    const bool first = rule == std::string("first");
    const Json json = plan_json({"--replicas", rule, "-"}, three_replicas);
    BOOST_TEST(json["totals"]["needed"] == 288);
    BOOST_TEST(json["totals"]["local"] == (first ? 96 : 288));
    BOOST_TEST(json["totals"]["max_egress"] == (first ? 192 : 0));
    BOOST_TEST(json["totals"]["relabelled_remote"].is_null() == first);
    for (const Json& piece : json["pieces"]) BOOST_TEST(piece["src"] == (first ? Json(0) : piece["dst"]));
  }
}

BOOST_AUTO_TEST_CASE(options_for_replicas_are_checked) {
  const CommandResult unknown = plan({"--replicas", "fist", "-"}, three_replicas);
  BOOST_TEST(unknown.exit_code == 2);
  BOOST_TEST(unknown.err.find("--replicas: 'fist' is unknown (did you mean 'first'?); known are spread, first") !=
             std::string::npos);
  const CommandResult relabelled = plan({"--replicas", "first", "--relabel", "-"}, three_replicas);
  BOOST_TEST(relabelled.exit_code == 2);
  BOOST_TEST(relabelled.err.find("leave them out") != std::string::npos);
}

// --- a host that is lost ---

const char* const three_hosts = R"j({
  "states": ["m"], "tensors": [{"fqn": "w", "shape": [12, 2]}, {"fqn": "step", "shape": [1]}], "hosts": 2,
  "source": {"ranks": 6, "rules": {"*": {"chunk": 0, "over": 6}}},
  "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}})j";

BOOST_DATA_TEST_CASE(a_host_that_is_lost_takes_what_nobody_has_copied, boost::unit_test::data::make({0, 1, 2}), host) {
  const std::vector<std::string> lost{"--lost-host", std::to_string(host), "-"};
  const CommandResult without = plan(lost, three_hosts);
  BOOST_TEST(without.exit_code == 1);
  BOOST_TEST(without.err.find("  w m [") != std::string::npos, without.err);
  std::vector<std::string> copied = lost;
  copied.insert(copied.begin(), {"--buddies", "1"});
  const CommandResult with = plan(copied, three_hosts);
  BOOST_TEST(with.exit_code == 0, with.err);
  BOOST_TEST(with.out.find("each rank has 1 copy on another host: every element has a holder") != std::string::npos,
             with.out);
  // All bytes of the target, as without a loss.
  copied.insert(copied.begin(), "--totals");
  BOOST_TEST(plan_json(copied, three_hosts)["totals"]["needed"] == 96);
}

BOOST_AUTO_TEST_CASE(options_for_a_lost_host_are_checked) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& input) {
    const CommandResult result = plan(std::move(arguments), input);
    BOOST_TEST(result.exit_code == 2);
    return result.err;
  };
  BOOST_TEST(refused({"--lost-host", "3", "-"}, three_hosts).find("hosts 0 to 2") != std::string::npos);
  BOOST_TEST(refused({"--buddies", "1", "-"}, three_hosts).find("--lost-host") != std::string::npos);
  BOOST_TEST(refused({"--lost-host", "0", "-"}, small).find("\"hosts\"") != std::string::npos);
  BOOST_TEST(refused({"--lost-host", "0", "--relabel", "-"}, three_hosts).find("--relabel") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
