// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <map>
#include <random>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/models.hpp"
#include "case_text.hpp"
#include "json_schema.hpp"
#include "shardwire/box.hpp"

BOOST_AUTO_TEST_SUITE(accepted_cases)

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
    static const JsonSchema schema(case_schema());
    BOOST_TEST(schema.accepts(parse_json(text)), text);
    return true;
  } catch (const CaseError&) {
    return false;  // any other exception ends the test
  }
}

}  // namespace

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
  BOOST_REQUIRE(job.by_value.size() == 3);  // its rule would split a dim that it lacks
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

BOOST_AUTO_TEST_CASE(a_flat_list_is_one_flat_parameter_in_one_buffer) {
  const char* const tensors = R"j({"fqn": "a", "shape": [9, 5]}, {"fqn": "s", "shape": [1]}, {"fqn": "b", "shape": [5]},
    {"fqn": "c", "shape": [6]})j";
  const Case job = parse_case(case_text(
      tensors, R"j("ranks": 2, "rules": {"*": {"flat": [["*"]], "world": 2, "align": 4}})j",
      R"j("ranks": 2, "rules": {"*": {"flat": [["c", "s"], ["b", "a"]], "world": 2}})j", R"j("dtype": "bf16")j"));
  const auto& source = job.source.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(source.size() == 3U);  // the one-element tensor travels by value, but still has its layout
  const std::vector<FlatMember> all{{{9, 5}}, {{1}}, {{5}}, {{6}}};
  const auto layouts = Layout::flat(all, 2, 4);
  BOOST_CHECK(source[0].layout == layouts[0]);
  BOOST_CHECK(source[1].layout == layouts[2]);
  BOOST_CHECK(source[2].layout == layouts[3]);
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 0, 0}}));
  const auto& target = job.target.layout.sections.at(0).manifest->tensors;
  BOOST_CHECK(target[0].layout == Layout::flat(std::vector<FlatMember>{{{5}}, {{9, 5}}}, 2)[1]);
  BOOST_CHECK(target[2].layout == Layout::flat(std::vector<FlatMember>{{{6}}, {{1}}}, 2)[0]);
  BOOST_TEST((job.target.buffers == std::vector<std::vector<std::uint32_t>>{{0, 0, 1}}));
}

BOOST_AUTO_TEST_CASE(a_tensor_may_have_states_of_its_own) {
  const char* const tensors = R"j({"fqn": "a", "shape": [4, 6]},
    {"fqn": "b", "shape": [4, 6], "rule": "r", "states": [{"name": "m", "dtype": "u8"}, {"name": "rows", "shape": [4], "rule": "f"},
     {"name": "step", "shape": [1], "rule": "f"}, {"name": "v"}]})j";
  const Case job = parse_case(
      case_text(tensors, R"j("ranks": 2, "rules": {"*": {"chunk": 1, "over": 2}, "f": {"replicated": true}})j",
                whole_side, R"j("dtypes": {"v": "bf16"})j"));
  BOOST_TEST(job.tensors == 2U);
  BOOST_TEST(job.tensor_states == 5U);
  BOOST_TEST((job.states == std::vector<std::string>{"m", "rows", "step", "v"}));
  BOOST_REQUIRE(job.by_value.size() == 1U);
  BOOST_CHECK(job.by_value[0].key == (TensorKey{"b", "step"}));
  std::map<std::string, TensorLayout> found;
  for (const TensorLayout& one : job.source.layout.sections.at(0).manifest->tensors) {
    found.emplace(to_string(one.spec.key), one);
  }
  BOOST_REQUIRE(found.size() == 4U);
  BOOST_CHECK(found.at("a:m").spec.dtype == DType::f32);
  BOOST_CHECK(found.at("b:m").spec.dtype == DType::u8);
  BOOST_CHECK(found.at("b:v").spec.dtype == DType::bf16);
  BOOST_CHECK(found.at("b:v").layout == Layout::chunk(1, 2));
  BOOST_CHECK(found.at("b:rows").spec.shape == (Extents{4}));
  BOOST_CHECK(found.at("b:rows").layout == Layout::replicated());
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 1, 2, 3}}));
}

BOOST_AUTO_TEST_CASE(states_of_one_type_share_the_buffer_of_their_flat_parameter) {
  const char* const tensors =
      R"j({"fqn": "a", "shape": [4, 6]}, {"fqn": "b", "shape": [4, 6], "states": [{"name": "v"}]},
    {"fqn": "c", "shape": [8], "states": [{"name": "v"}, {"name": "m"}]}, {"fqn": "d", "shape": [8], "states": [{"name": "m", "dtype": "u8"}]})j";
  const Case job =
      parse_case(case_text(tensors, R"j("ranks": 2, "rules": {"*": {"flat": [["*"]], "world": 2}})j", whole_side));
  BOOST_TEST((job.source.buffers == std::vector<std::vector<std::uint32_t>>{{0, 1, 1, 0, 2}}));
}

BOOST_AUTO_TEST_CASE(a_layout_may_be_on_some_ranks) {
  const auto layout_of = [](const std::string& rule) {
    const Case job = parse_case(with_source(R"j("ranks": 6, "rules": {"r": )j" + rule + "}"));
    return job.source.layout.sections.at(0).manifest->tensors.at(0).layout;
  };
  const std::vector<Rank> odd{Rank{5}, Rank{1}, Rank{3}};
  const Layout flat = Layout::flat(std::vector<FlatMember>{{{8, 4}}}, 3)[0];
  BOOST_CHECK(layout_of(R"j({"flat": [["*"]], "world": 3, "ranks": [5, 1, 3]})j") == Layout::on_ranks(flat, odd));
  BOOST_CHECK(layout_of(R"j({"chunk": 0, "over": 3, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::chunk(0, 3), odd));
  BOOST_CHECK(layout_of(R"j({"replicated": true, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::replicated(), odd));
  BOOST_CHECK(layout_of(R"j({"blockcyclic": {"block": [1, 4], "grid": [3, 1]}, "ranks": [5, 1, 3]})j") ==
              Layout::on_ranks(Layout::block_cyclic({1, 4}, {3, 1}), odd));
}

BOOST_AUTO_TEST_CASE(a_flat_parameter_over_tensor_parallel_slices) {
  const Case job = parse_case(R"j({"model": "llama3-8b", "layers": 1, "embeddings": false, "states": ["m", "v"],
    "source": {"ranks": 4, "rules": {"*": {"flat": [["*"]], "world": 2, "within": {
      "row": {"chunk": 0, "over": 2}, "col": {"mesh": [2], "placements": ["S(1)"]},
      "rep": {"mesh": [2], "placements": ["R"]}}}}},
    "target": {"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}}})j");
  const auto& tensors = job.source.layout.sections.at(0).manifest->tensors;
  BOOST_REQUIRE(tensors.size() == 18U);
  ElementCount slice = 0;
  for (std::size_t i = 0; i < tensors.size(); i += 2) {
    const ElementCount all = volume_of(tensors[i].spec.shape);
    slice += tensors[i].spec.shape.size() == 1 ? all : all / 2;
  }
  BOOST_TEST(tensors[0].layout.local_elements(tensors[0].spec.shape, Rank{3}) == slice / 2);
  BOOST_TEST(job.source.buffers.at(0).at(16) == 0U);  // one buffer per state
  BOOST_TEST(job.source.buffers.at(0).at(17) == 1U);
  BOOST_TEST(job.target.buffers.at(0).at(17) == 17U);
}

BOOST_AUTO_TEST_CASE(pipeline_stages_have_their_layers_and_ranks) {
  const Case job = parse_case(R"j({"model": "llama3-8b", "layers": 5, "states": ["m"],
    "source": {"ranks": 6, "lost": [3], "pipeline": 3, "rules": {
      "*": {"mesh": [2], "placements": ["S(0)"], "ranks": [1, 0]}, "rep": {"replicated": true}}},
    "target": {"ranks": 4, "pipeline": 2, "rules": {
      "*": {"flat": [["*"]], "world": 2}, "rep": {"blockcyclic": {"block": [8], "grid": [2]}}}}})j");
  const auto& sections = job.source.layout.sections;
  BOOST_REQUIRE(sections.size() == 3U);
  BOOST_TEST((sections[1].ranks == std::vector<Rank>{Rank{2}}));
  BOOST_TEST((sections[2].ranks == std::vector<Rank>{Rank{4}, Rank{5}}));
  BOOST_TEST(sections[0].manifest->ranks == 6);
  const auto names = [](const Section& section) {
    const auto& tensors = section.manifest->tensors;
    return tensors.front().spec.key.fqn + " .. " + tensors.back().spec.key.fqn;
  };
  BOOST_TEST(names(sections[0]) == "model.embed_tokens.weight .. model.layers.1.mlp.down_proj.weight");
  BOOST_TEST(names(sections[1]) == "model.layers.2.input_layernorm.weight .. model.layers.3.mlp.down_proj.weight");
  BOOST_TEST(names(sections[2]) == "model.layers.4.input_layernorm.weight .. lm_head.weight");
  const TensorLayout& norm = sections[1].manifest->tensors.at(0);
  const TensorLayout& query = sections[1].manifest->tensors.at(1);
  for (int rank = 0; rank < 6; ++rank) {
    BOOST_TEST(norm.layout.boxes_of({4096}, Rank{rank}).size() == (rank / 2 == 1 ? 1U : 0U));
  }
  BOOST_TEST(query.layout.boxes_of({4096, 4096}, Rank{2}).at(0).box.lower(0) == 2048);
  BOOST_TEST(query.layout.boxes_of({4096, 4096}, Rank{3}).at(0).box.lower(0) == 0);
  // Each stage has its own flat parameters.
  const auto& last = job.target.layout.sections.at(1).manifest->tensors;
  ElementCount elements = 0;
  for (const TensorLayout& tensor : last) {
    if (tensor.spec.shape.size() == 2) elements += volume_of(tensor.spec.shape);
  }
  BOOST_TEST(last.at(1).layout.local_elements(last[1].spec.shape, Rank{2}) == elements / 2);
  BOOST_TEST(last.at(1).layout.local_elements(last[1].spec.shape, Rank{1}) == 0);
}

BOOST_AUTO_TEST_CASE(one_element_tensors_fit_every_rule) {
  const char* const tensors =
      R"j({"fqn": "a", "shape": [4, 4]}, {"fqn": "s", "shape": []}, {"fqn": "t", "shape": [1, 1, 1]})j";
  for (const char* rule : {R"j({"chunk": 1, "over": 2})j", R"j({"mesh": [2], "placements": ["S(1)"]})j",
                           R"j({"blockcyclic": {"block": [2, 2], "grid": [1, 2]}})j",
                           R"j({"flat": [["*"]], "world": 1, "within": {"chunk": 1, "over": 2}})j",
                           R"j({"boxes": {"0": [[[0, 0], [4, 4]]]}})j"}) {
    const Case job = parse_case(
        case_text(tensors, std::string(R"j("ranks": 2, "rules": {"*": )j").append(rule).append("}"), whole_side));
    BOOST_TEST(job.by_value.size() == 2U);
    BOOST_TEST(job.source.layout.sections.at(0).manifest->tensors.size() == 1U);
  }
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
