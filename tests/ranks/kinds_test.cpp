// SPDX-License-Identifier: Apache-2.0
// A restore of every layout kind with real ranks: all elements arrive, and padding stays unchanged.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>

#include "support/command.hpp"

BOOST_AUTO_TEST_SUITE(kinds_of_layouts)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;

struct Kind {
  const char* title;
  std::string text;
  int elements;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.title;
}

// Uneven shapes of 117 + 10 + 35 elements in two states; one tensor of one element, by value.
std::string job(const std::string& source, const std::string& target,
                const std::string& dtypes = R"j("dtype": "f32")j") {
  return R"j({"states": ["m", "v"], )j" + dtypes + R"j(, "scalars": {"step": 3}, "tensors": [
    {"fqn": "a", "shape": [13, 9], "rule": "row"}, {"fqn": "s", "shape": [1]}, {"fqn": "b", "shape": [10], "rule": "rep"},
    {"fqn": "c", "shape": [5, 7], "rule": "col"}], "source": {)j" +
         source + R"j(}, "target": {)j" + target + "}}";
}

// The norms of three layers only, as left of a model when no rank owns the other parameters.
std::string stages(const std::string& source, const std::string& target) {
  return R"j({"model": "llama3-8b", "layers": 3, "states": ["m"], "source": {)j" + source + R"j(}, "target": {)j" +
         target + "}}";
}

const std::string halves = R"j("ranks": 2, "rules": {"*": {"chunk": 0, "over": 2}})j";
const std::string tensor_parallel = R"j({"row": {"chunk": 0, "over": 2}, "col": {"mesh": [2], "placements": ["S(1)"]},
  "*": {"mesh": [2], "placements": ["R"]}})j";

const Kind kinds[] = {
    {"flat_to_chunk", job(R"j("ranks": 3, "rules": {"*": {"flat": [["*"]], "world": 3}})j", halves), 324},
    {"chunk_to_flat", job(halves, R"j("ranks": 4, "rules": {"*": {"flat": [["b", "a"], ["c", "s"]], "world": 4}})j"),
     324},
    {"aligned_flat_to_other_world",
     job(R"j("ranks": 4, "rules": {"*": {"flat": [["*"]], "world": 4, "align": 8}})j",
         R"j("ranks": 3, "rules": {"*": {"flat": [["a", "s"], ["b", "c"]], "world": 3, "align": 4}})j",
         R"j("dtype": "bf16", "dtypes": {"v": "u8"})j"),
     324},
    {"flat_over_tensor_parallel_slices_to_flat",
     job(R"j("ranks": 4, "rules": {"*": {"flat": [["*"]], "world": 2, "align": 4, "within": )j" + tensor_parallel +
             "}}",
         R"j("ranks": 3, "rules": {"*": {"flat": [["*"]], "world": 3}})j"),
     324},
    {"flat_to_flat_over_tensor_parallel_slices",  // b is on both outer ranks
     job(R"j("ranks": 3, "rules": {"*": {"flat": [["*"]], "world": 3}})j",
         R"j("ranks": 4, "rules": {"*": {"flat": [["*"]], "world": 2, "within": )j" + tensor_parallel + "}}"),
     344},
    {"block_cyclic_to_another_grid",
     job(R"j("ranks": 6, "rules": {"rep": {"blockcyclic": {"block": [3], "grid": [4], "source": [1]}},
           "*": {"blockcyclic": {"block": [2, 3], "grid": [3, 2]}}})j",
         R"j("ranks": 4, "rules": {"rep": {"blockcyclic": {"block": [1], "grid": [2]}},
           "*": {"blockcyclic": {"block": [3, 1], "grid": [2, 2], "source": [1, 0]}}})j"),
     324},
    {"strided_shards_to_chunk",
     job(R"j("ranks": 6, "rules": {"*": {"mesh": [3, 2], "placements": ["SS(0,2)", "S(0)"], "order": "tp_first"}})j",
         halves),
     324},
    {"chunk_to_strided_shards",
     job(halves, R"j("ranks": 6, "rules": {"*": {"mesh": [3, 2], "placements": ["SS(0,2)", "S(0)"]}})j"), 324},
    {"uneven_boxes",
     job(R"j("ranks": 3, "rules": {"row": {"boxes": {"0": [[[0, 0], [13, 1]]], "2": [[[4, 1], [9, 8]], [[0, 1], [4, 8]]]}},
           "rep": {"boxes": {"1": [[[3], [7]], [[0], [3]]]}}, "*": {"boxes": {"0": [[[0, 0], [5, 7]]]}}})j",
         R"j("ranks": 2, "rules": {"row": {"boxes": {"0": [[[2, 2], [5, 5]], [[7, 2], [6, 5]]]}},
           "rep": {"boxes": {"0": [[[9], [1]]], "1": [[[0], [9]]]}}, "*": {"mesh": [2], "placements": ["S(1)"]}})j"),
     200},
    {"hybrid_shards_with_a_lost_replica",
     job(R"j("ranks": 4, "lost": [1], "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}})j",
         R"j("ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}})j"),
     324},
    {"replicated_to_chunk", job(R"j("ranks": 2, "rules": {"*": {"replicated": true}})j", halves), 324},
    {"chunk_to_replicated", job(halves, R"j("ranks": 3, "rules": {"*": {"replicated": true}})j"), 972},
    {"two_stages_to_three",
     stages(
         R"j("ranks": 4, "pipeline": 2, "rules": {"rep": {"chunk": 0, "over": 2}, "*": {"boxes": {}}})j",
         R"j("ranks": 6, "pipeline": 3, "rules": {"rep": {"flat": [["*"]], "world": 2, "align": 3}, "*": {"boxes": {}}})j"),
     7 * 4096},
    {"three_stages_to_two",
     stages(
         R"j("ranks": 3, "pipeline": 3, "rules": {"rep": {"replicated": true}, "*": {"boxes": {}}})j",
         R"j("ranks": 4, "pipeline": 2, "rules": {"rep": {"blockcyclic": {"block": [5], "grid": [2]}}, "*": {"boxes": {}}})j"),
     7 * 4096},
};

}  // namespace

BOOST_DATA_TEST_CASE(arrive_whole, boost::unit_test::data::make(kinds), kind) {
  const std::string path = "kinds_test_report." + std::to_string(::getpid()) + ".json";
  const char* transport = std::getenv("TEST_TRANSPORT");
  const CommandResult result = run_command(
      {"run", "-", "--transport", transport == nullptr ? "loopback" : transport, "--repeat", "2", "--report", path},
      kind.text, {{"SHARDWIRE_LOG", "error"}});
  BOOST_TEST(result.exit_code == 0, result.err);
  std::ifstream file(path);
  BOOST_REQUIRE(file.is_open());
  const Json report = Json::parse(file);
  std::remove(path.c_str());
  BOOST_TEST(report["verified"] == true);
  BOOST_TEST(report["elements"] == kind.elements);
  const CommandResult planned = run_command({"plan", "--json", "--totals", "-"}, kind.text);
  BOOST_REQUIRE_MESSAGE(planned.exit_code == 0, planned.err);
  const Json totals = Json::parse(planned.out)["totals"];
  BOOST_TEST(report["bytes"]["needed"] == totals["needed"]);  // no padding in it
  BOOST_TEST(report["bytes"]["moved"] == totals["remote"]);
}

BOOST_AUTO_TEST_SUITE_END()
