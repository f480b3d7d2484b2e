// SPDX-License-Identifier: Apache-2.0
// Holds the JSON Schema of case files against their reader. refusals_test.cpp has what both refuse.
#include <boost/test/unit_test.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/layout_parser.hpp"
#include "case/models.hpp"
#include "case_text.hpp"
#include "geometry/dtypes.hpp"
#include "json_schema.hpp"

BOOST_AUTO_TEST_SUITE(schema_of_cases)

namespace {

using namespace shardwire;
using namespace shardwire::test;
namespace fs = std::filesystem;

const JsonSchema& schema() {
  static const JsonSchema one{case_schema()};
  return one;
}

// Of a subschema.
const Json& part(const std::string& pointer) {
  return schema().json().at(Json::json_pointer(pointer));
}

std::string text_of(const fs::path& path) {
  std::ostringstream all;
  all << std::ifstream(path).rdbuf();
  return all.str();
}

fs::path repository() {
  const char* root = std::getenv("SOURCE_ROOT");
  BOOST_REQUIRE(root != nullptr);
  return root;
}

// The words of a list in the message of the reader's refusal, between two texts.
std::set<std::string> listed(const std::string& text, const std::string& before, const std::string& after = {}) {
  std::set<std::string> words;
  try {
    parse_case(text);
  } catch (const CaseError& error) {
    std::string what = error.what();
    what = what.substr(what.find(before) + before.size());
    std::istringstream list(after.empty() ? what : what.substr(0, what.find(after)));
    for (std::string word; std::getline(list >> std::ws, word, ',');) words.insert(word);
  }
  return words;
}

std::set<std::string> words_of(const Json& list) {
  return list.get<std::set<std::string>>();
}

// Objects that refuse fields that they do not list.
std::size_t closed_objects(const Json& schema) {
  std::size_t count = schema.is_object() && schema.contains("properties") && schema.contains("additionalProperties");
  if (schema.is_structured()) {
    for (const Json& one : schema) count += closed_objects(one);
  }
  return count;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_reader_and_the_schema_know_the_same_fields) {
  const auto with_rule = [](const std::string& rule) {
    return with_source(R"j("ranks": 4, "rules": {"r": )j" + rule + "}");
  };
  const std::vector<std::pair<const char*, std::string>> places{
      {"", with_top(R"j("?": 0)j")},
      {"/properties/tensors/items", with_tensor(R"j("?": 0)j")},
      {"/properties/tensors/items/properties/states/items",
       with_tensor(R"j("fqn": "w", "shape": [], "states": [{"?": 0}])j")},
      {"/properties/source", with_source(R"j("?": 0)j")},
      {"/properties/target", with_target(R"j("?": 0)j")},
      {"/$defs/mesh", with_rule(R"j({"mesh": [4], "?": 0})j")},
      {"/$defs/chunk", with_rule(R"j({"chunk": 0, "?": 0})j")},
      {"/$defs/replicated", with_rule(R"j({"replicated": true, "?": 0})j")},
      {"/$defs/boxes", with_rule(R"j({"boxes": {}, "?": 0})j")},
      {"/$defs/blockcyclic", with_rule(R"j({"blockcyclic": {}, "?": 0})j")},
      {"/$defs/blockcyclic/properties/blockcyclic", with_rule(R"j({"blockcyclic": {"?": 0}})j")},
      {"/$defs/flat", with_rule(R"j({"flat": [], "?": 0})j")},
  };
  for (const auto& [pointer, text] : places) {
    std::set<std::string> fields;
    for (const auto& [name, field] : part(pointer).at("properties").items()) fields.insert(name);
    BOOST_TEST(listed(text, "unknown field; known are ") == fields, boost::test_tools::per_element());
  }
  BOOST_TEST(closed_objects(schema().json()) == places.size());
}

BOOST_AUTO_TEST_CASE(the_reader_and_the_schema_know_the_same_names) {
  const auto models = listed(R"j({"model": "?"})j", "known are ");
  BOOST_TEST(words_of(part("/properties/model/enum")) == models, boost::test_tools::per_element());

  auto dtypes = words_of(part("/$defs/dtype/anyOf/0/enum"));
  dtypes.insert("opaque1 to opaque65535");
  BOOST_TEST(dtypes == listed(with_top(R"j("dtype": "?")j"), "known are "), boost::test_tools::per_element());

  auto orders = listed(with_source(R"j("ranks": 1, "rules": {"r": {"mesh": [1], "placements": ["R"], "order": "?"}})j"),
                       "known are ");
  BOOST_TEST(words_of(part("/$defs/mesh/properties/order/enum")) == orders, boost::test_tools::per_element());

  std::set<std::string> rules{std::begin(model_rules), std::end(model_rules)};
  rules.insert("*");
  const Json& names = part("/$defs/side_of_model/properties/rules/propertyNames/enum");
  BOOST_TEST(words_of(names) == rules, boost::test_tools::per_element());

  const auto kinds = listed(with_source(R"j("ranks": 1, "rules": {"r": {}})j"), "no layout; one of ", " is expected");
  BOOST_TEST(words_of(part("/$defs/rule/not/enum")) == kinds, boost::test_tools::per_element());
  std::set<std::string> referred;
  for (const Json& one : part("/$defs/rules/additionalProperties/oneOf")) {
    referred.insert(one.at("$ref").get<std::string>().substr(std::string("#/$defs/").size()));
  }
  BOOST_TEST(referred == kinds, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(case_files_of_the_repository_are_valid) {
  int files = 0;
  for (const char* folder : {"perf/cases", "examples/cases", "tests/verbs"}) {
    for (const auto& entry : fs::directory_iterator(repository() / folder)) {
      if (entry.path().extension() != ".json") continue;
      ++files;
      BOOST_TEST(schema().accepts(parse_json(text_of(entry))), entry.path());
    }
  }
  BOOST_TEST(files > 30);
  const std::string all = text_of(repository() / "docs/case-format.md");
  const std::string page = all.substr(0, all.find("\n## Fabric files"));  // which are no cases
  int blocks = 0;
  for (std::size_t at = page.find("```json\n"); at != std::string::npos; at = page.find("```json\n", at + 1)) {
    const std::size_t begin = at + std::string("```json\n").size();
    ++blocks;
    BOOST_TEST(schema().accepts(parse_json(page.substr(begin, page.find("```", begin) - begin))));
  }
  BOOST_TEST(blocks >= 3);
}

BOOST_AUTO_TEST_CASE(what_the_reader_takes_of_the_fuzzing_inputs_is_valid) {
  int taken = 0;
  for (const auto& entry : fs::directory_iterator(repository() / "tests/fuzz/corpus/case_file")) {
    const std::string text = text_of(entry);
    try {
      parse_case(text);
    } catch (const CaseError&) {
      continue;
    }
    ++taken;
    BOOST_TEST(schema().accepts(parse_json(text)), entry.path());
  }
  BOOST_TEST(taken > 10);
}

BOOST_AUTO_TEST_SUITE_END()
