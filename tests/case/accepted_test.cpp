// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <random>

#include "case/case.hpp"
#include "case/models.hpp"
#include "case_text.hpp"
#include "shardwire/box.hpp"

namespace {

using namespace shardwire;
using namespace shardwire::test;

const char* const example = R"j({
  "name": "8b-fsdp8-to-fsdp4xtp2",
  "dtype": "f32",
  "states": ["master", "exp_avg", "exp_avg_sq"],
  "scalars": {"step": 1000, "lr": 0.5, "amsgrad": false, "note": "x", "none": null},
  "dtypes": {"exp_avg": "bf16"},
  "hosts": 4,
  "tensors": [
    {"fqn": "layers.0.self_attn.o_proj.weight", "shape": [4096, 4096], "rule": "col"},
    {"fqn": "temperature", "shape": [1], "rule": "col"},
    {"fqn": "norm.weight", "shape": [4096], "rule": "rep"}
  ],
  "source": {"ranks": 8, "lost": [3, 1], "rules": {"*": {"mesh": [8], "placements": ["S(0)"]
}
}
}
, "target" : {
  "ranks" : 8, "rules" : {
    "col" : {"mesh" : [ 4, 2 ], "placements" : [ "S(0)", "S(1)" ]},
            "row" : {"mesh" : [ 4, 2 ], "placements" : [ "SS(0,2)", "S(0)" ], "order" : "tp_first"},
                    "rep" : {
      "mesh" : [ 4, 2 ], "placements" : [ "S(0)", "R" ]
    }
  }
}
})j";

std::pair<std::size_t, ElementCount> size_of_model(const char* name) {
  const Model* model = find_model(name);
  BOOST_REQUIRE(model != nullptr);
  ElementCount parameters = 0;
  const auto tensors = tensors_of(*model, model->layers, true);
  for (const CaseTensor& tensor : tensors) parameters += volume_of(tensor.shape);
  return {tensors.size(), parameters};
}

bool accepted(const std::string& text) {
  try {
    parse_case(text);
    return true;
  } catch (const CaseError&) {
    return false;  // anything else ends the test
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(accepted_cases)

BOOST_AUTO_TEST_CASE(the_documented_example) {
  const Case job = parse_case(example);
  BOOST_TEST(job.name == "8b-fsdp8-to-fsdp4xtp2");
  BOOST_TEST(job.tensors == 3);
  BOOST_TEST(job.ranks_per_host == 4);
  BOOST_TEST(job.scalars.size() == 5);
  BOOST_TEST((job.source.lost == std::vector<Rank>{Rank{1}, Rank{3}}));
  BOOST_REQUIRE(job.source.layout.sections.size() == 1);
  BOOST_TEST(job.source.layout.sections[0].ranks.size() == 6);
  const auto& tensors = job.target.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(tensors.size() == 6);  // two of more than one element, three states
  BOOST_CHECK(tensors[1].spec.key == (TensorKey{"layers.0.self_attn.o_proj.weight", "exp_avg"}));
  BOOST_CHECK(tensors[1].spec.dtype == DType::bf16);
  BOOST_CHECK(tensors[2].spec.dtype == DType::f32);
  BOOST_CHECK(tensors[0].layout == Layout::mesh({4, 2}, {Shard{0}, Shard{1}}));
  BOOST_REQUIRE(job.by_value.size() == 3);  // its rule cuts a dim it does not have
  BOOST_TEST(job.by_value[0].key.fqn == "temperature");
}

BOOST_AUTO_TEST_CASE(values_keep_their_types) {
  const Case job = parse_case(example);
  for (const auto& [name, value] : job.scalars) {
    if (name == "step") BOOST_CHECK(value == Value(std::int64_t{1000}));
    if (name == "lr") BOOST_CHECK(value == Value(0.5));
    if (name == "amsgrad") BOOST_CHECK(value == Value(false));
    if (name == "note") BOOST_CHECK(value == Value(std::string("x")));
    if (name == "none") BOOST_CHECK(value == Value());
  }
}

BOOST_AUTO_TEST_CASE(models_have_their_published_sizes) {
  BOOST_CHECK(size_of_model("llama3-8b") == (std::pair<std::size_t, ElementCount>{291, 8'030'261'248}));
  BOOST_CHECK(size_of_model("llama3-70b") == (std::pair<std::size_t, ElementCount>{723, 70'553'706'496}));
  BOOST_CHECK(size_of_model("llama3-405b") == (std::pair<std::size_t, ElementCount>{1137, 405'853'388'800}));
  BOOST_TEST(size_of_model("deepseek-v3").first == 45'395);
}

BOOST_AUTO_TEST_CASE(one_layer_of_the_8b_model) {
  const Model* model = find_model("llama3-8b");
  ElementCount parameters = 0;
  for (const CaseTensor& tensor : tensors_of(*model, 1, false)) parameters += volume_of(tensor.shape);
  BOOST_TEST(parameters == 218'112'000);
}

BOOST_AUTO_TEST_CASE(edges_of_the_format) {
  BOOST_CHECK(accepted(with_source(R"j("ranks": 4, "rules": {"*": {"boxes": {}}})j")));
  BOOST_CHECK(accepted(with_source(R"j("ranks": 4, "rules": {"*": {"chunk": -1, "over": 2}})j")));
  BOOST_CHECK(accepted(
      with_source(R"j("ranks": 4, "rules": {"r": {"mesh": [2], "placements": ["S(-2)"], "ranks": [3, 1]}})j")));
  BOOST_CHECK(accepted(with_source(R"j("ranks": 1, "lost": [0], "rules": {"*": {"replicated": true}})j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [])j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [0, 4])j")));
  BOOST_CHECK(accepted(with_tensor(R"j("fqn": "w", "shape": [4], "rule": "ranks")j")));
  // Boxes of different ranks may share elements.
  BOOST_CHECK(accepted(with_source(
      R"j("ranks": 4, "rules": {"r": {"boxes": {"0": [[[0, 0], [2, 2]]], "1": [[[0, 0], [2, 2]], [[2, 0], [6, 4]]]}}})j")));
}

BOOST_AUTO_TEST_CASE(mangled_text_is_accepted_or_refused_but_never_worse) {
  const unsigned seed = std::random_device{}();
  BOOST_TEST_MESSAGE("seed " << seed);
  BOOST_TEST_CONTEXT("seed " << seed) {
    std::mt19937 random(seed);
    const auto pick = [&](std::size_t below) {
      return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
    };
    const std::string bits = R"j({}[],:"0123456789-.eERS()truefalsn\ )j";
    std::size_t refused = 0;
    for (int round = 0; round < 20'000; ++round) {
      std::string text = example;
      for (std::size_t change = 1 + pick(4); change > 0; --change) {
        const std::size_t at = pick(text.size());
        switch (pick(5)) {
          case 0: text.erase(at, 1 + pick(8)); break;
          case 1: text.insert(at, 1, bits[pick(bits.size())]); break;
          case 2: text[at] = bits[pick(bits.size())]; break;
          case 3: text[at] = static_cast<char>(pick(256)); break;
          case 4: text.insert(at, text.substr(pick(text.size()), 1 + pick(60))); break;
        }
      }
      if (!accepted(text)) ++refused;
    }
    BOOST_TEST(refused > 10'000);
  }
}

BOOST_AUTO_TEST_SUITE_END()
