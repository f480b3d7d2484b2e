// SPDX-License-Identifier: Apache-2.0
// Every refusal of a case file, with the user's error message.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/made_case.hpp"
#include "case_text.hpp"
#include "json_schema.hpp"

BOOST_AUTO_TEST_SUITE(refused_cases)

namespace {

using namespace shardwire;
using namespace shardwire::test;

struct Refusal {
  const char* title;
  std::string text;
  std::string message;  ///< begins with this
};
std::ostream& operator<<(std::ostream& out, const Refusal& refusal) {
  return out << refusal.title;
}

// One 2-d tensor w of rule r; `rule` is the source's entry for it.
std::string with_rule(const std::string& rule) {
  return with_source(R"j("ranks": 4, "rules": {"*": {"replicated": true}, "r": )j" + rule + "}");
}

std::string with_flat_within(const std::string& within) {
  return with_rule(R"j({"flat": [["*"]], "world": 2, "within": )j" + within + "}");
}

std::string with_stages(const std::string& ranks, const std::string& rules = R"j({"*": {"replicated": true}})j") {
  return R"j({"model": "llama3-8b", "layers": 3, "source": {)j" + ranks + R"j(, "rules": )j" + rules +
         R"j(}, "target": {"ranks": 1, "rules": {"*": {"replicated": true}}}})j";
}

const Refusal refused_files[] = {
    {"no_json", "{\n  \"name\": ,\n}", "2:11: syntax error while parsing value"},
    {"truncated", "{\"name\": \"a\"", "1:13: syntax error"},
    {"text_after_the_end", "{} {}", "1:4: syntax error"},
    {"a_comment", "{ // no\n}", "1:3: syntax error"},
    {"no_object", "[1]", "an object is expected, this is array"},
    {"repeated_key", R"j({"name": "a", "name": "b"})j", "name: the key stands twice"},
    {"repeated_rule", with_source(R"j("ranks": 1, "rules": {"r": {"replicated": true}, "r": {"replicated": true}})j"),
     "source.rules.r: the key stands twice"},
    {"huge_integer", with_source(R"j("ranks": 99999999999999999999999, "rules": {})j"),
     "source.ranks: the integer 99999999999999999999999 does not fit 64 bits"},
    {"huge_number", R"j({"scalars": {"lr": 1e999}})j", "1:"},
    {"unknown_field", with_top(R"j("colour": 1)j"), "colour: unknown field; known are name"},
    {"misspelt_field", with_top(R"j("dtpye": "f32")j"), "dtpye: unknown field (did you mean 'dtype'?); known are name"},
    {"unknown_side_field", with_source(R"j("ranks": 1, "rules": {}, "rank": 1)j"), "source.rank: unknown field"},
    {"unknown_tensor_field", with_tensor(R"j("fqn": "w", "shape": [4], "dtype": "f32")j"),
     "tensors[0].dtype: unknown field"},
    {"missing_source", R"j({"tensors": [{"fqn": "w", "shape": [4]}], "target": {"ranks": 1, "rules": {}}})j",
     "the field 'source' is missing"},
    {"missing_ranks", with_source(R"j("rules": {"*": {"replicated": true}})j"), "source: the field 'ranks' is missing"},
    {"missing_rules", with_source(R"j("ranks": 2)j"), "source: the field 'rules' is missing"},
    {"no_rank", with_source(R"j("ranks": 0, "rules": {"*": {"replicated": true}})j"),
     "source.ranks: 0 is not from 1 to"},
    {"fractional_ranks", with_source(R"j("ranks": 2.0, "rules": {})j"),
     "source.ranks: an integer is expected, this is 2.0"},
    {"too_many_ranks", with_source(R"j("ranks": 1099511627776, "rules": {})j"),
     "source.ranks: 1099511627776 is not from"},
    // tensors
    {"no_tensors", R"j({"tensors": []})j", "tensors: no tensor"},
    {"neither_model_nor_tensors", R"j({"states": ["m"]})j", "one of the fields 'model' and 'tensors' is missing"},
    {"model_and_tensors", R"j({"model": "llama3-8b", "tensors": []})j", "model: model stands in place of tensors"},
    {"unknown_model", R"j({"model": "llama4"})j", "model: unknown model \"llama4\"; known are llama3-8b"},
    {"misspelt_model", R"j({"model": "lama3-8b"})j",
     "model: unknown model \"lama3-8b\" (did you mean 'llama3-8b'?); known are"},
    {"too_many_layers", R"j({"model": "llama3-8b", "layers": 33})j", "layers: llama3-8b has 32 layers"},
    {"negative_layers", R"j({"model": "llama3-8b", "layers": -1})j", "layers: -1 is not from 0 to"},
    {"nothing_left", R"j({"model": "llama3-8b", "layers": 0, "embeddings": false})j", "no tensor is left of the model"},
    {"layers_without_model", with_top(R"j("layers": 1)j"), "layers: is valid only together with a model"},
    {"embeddings_no_bool", R"j({"model": "llama3-8b", "embeddings": 0})j", "embeddings: true or false is expected"},
    {"misspelt_model_rule",
     R"j({"model": "llama3-8b", "layers": 1, "source": {"ranks": 1, "rules": {"*": {"replicated": true}, "rwo": {"replicated": true}}}})j",
     "source.rules.rwo: the model has no tensors of this rule (did you mean 'row'?); known are row, col, rep, expert, "
     "*"},
    {"repeated_tensor", with_tensors(R"j({"fqn": "w", "shape": [4]}, {"fqn": "w", "shape": [4]})j"),
     "tensors[1].fqn: a tensor of this name stands before"},
    {"empty_fqn", with_tensor(R"j("fqn": "", "shape": [4])j"), "tensors[0].fqn: an empty name"},
    {"negative_extent", with_tensor(R"j("fqn": "w", "shape": [4, -1])j"), "tensors[0].shape[1]: -1 is not from 0 to"},
    {"fractional_extent", with_tensor(R"j("fqn": "w", "shape": [4.5])j"),
     "tensors[0].shape[0]: an integer is expected"},
    {"nine_dims", with_tensor(R"j("fqn": "w", "shape": [1,1,1,1,1,1,1,1,1])j"), "tensors[0].shape: 9 dims"},
    {"volume_overflow", with_tensor(R"j("fqn": "w", "shape": [4294967296, 4294967296])j"), "tensors[0].shape: "},
    {"bytes_overflow", with_tensor(R"j("fqn": "w", "shape": [9223372036854775807])j"), "tensors[0].shape: "},
    {"keyword_as_tensor_rule", with_tensor(R"j("fqn": "w", "shape": [4], "rule": "mesh")j"),
     "tensors[0].rule: 'mesh' is a layout keyword"},
    {"no_entry_for_a_tensor", with_source(R"j("ranks": 1, "rules": {"x": {"replicated": true}})j"),
     "tensors[0]: no entry of source.rules serves rule 'r' of tensor \"w\""},
    {"misspelt_rule_of_a_tensor",
     case_text(R"j({"fqn": "w", "shape": [4], "rule": "clo"})j",
               R"j("ranks": 1, "rules": {"row": {"replicated": true}, "col": {"replicated": true}})j", whole_side),
     "tensors[0]: no entry of source.rules serves rule 'clo' of tensor \"w\" (did you mean 'col'?)"},
    // states, dtypes, scalars
    {"unknown_dtype", with_top(R"j("dtype": "?")j"), "dtype: unknown dtype \"?\"; known are f64"},
    {"misspelt_dtype", with_top(R"j("dtype": "bf61")j"),
     "dtype: unknown dtype \"bf61\" (did you mean 'bf16'?); known are f64"},
    {"dtype_of_pytorch", with_top(R"j("dtype": "torch.bfloat16")j"),
     "dtype: unknown dtype \"torch.bfloat16\" (did you mean 'bf16'?); known are f64"},
    {"dtype_of_numpy", R"j({"tensors": [{"fqn": "w", "shape": [4]}], "dtypes": {"exp_avg": "float32"}})j",
     "dtypes.exp_avg: unknown dtype \"float32\" (did you mean 'f32'?); known are f64"},
    {"dtype_in_capitals", with_top(R"j("dtype": "BF16")j"),
     "dtype: unknown dtype \"BF16\" (did you mean 'bf16'?); known are f64"},
    {"dtype_of_a_misspelt_state", R"j({"tensors": [{"fqn": "w", "shape": [4]}], "dtypes": {"exp_agv": "bf16"}})j",
     "dtypes.exp_agv: no tensor has this state (did you mean 'exp_avg'?); known are \"master\", \"exp_avg\", "
     "\"exp_avg_sq\""},
    {"dtype_of_unknown_state", with_top(R"j("dtypes": {"v": "bf16"})j"),
     "dtypes.v: no tensor has this state; known are \"m\""},
    {"repeated_state", R"j({"tensors": [{"fqn": "w", "shape": [4]}], "states": ["m", "m"]})j",
     "states[1]: the state stands twice"},
    {"no_state", R"j({"tensors": [{"fqn": "w", "shape": [4]}], "states": []})j", "states: no state"},
    {"empty_list_of_a_tensors_states", with_tensor(R"j("fqn": "w", "shape": [4], "states": [])j"),
     "tensors[0].states: no state"},
    {"repeated_state_of_a_tensor",
     with_tensor(R"j("fqn": "w", "shape": [4], "states": [{"name": "m"}, {"name": "m"}])j"),
     "tensors[0].states[1].name: the state stands twice"},
    {"state_without_a_name", with_tensor(R"j("fqn": "w", "shape": [4], "states": [{"dtype": "u8"}])j"),
     "tensors[0].states[0]: the field 'name' is missing"},
    {"state_of_another_shape_without_a_rule",
     with_tensor(R"j("fqn": "w", "shape": [4, 2], "states": [{"name": "m", "shape": [4]}])j"),
     "tensors[0].states[0].shape: differs from (4, 2) of the tensor, so the state needs a \"rule\" of its own"},
    {"keyword_as_rule_of_a_state",
     with_tensor(R"j("fqn": "w", "shape": [4, 2], "states": [{"name": "m", "shape": [4], "rule": "flat"}])j"),
     "tensors[0].states[0].rule: 'flat' is a layout keyword"},
    {"state_of_another_shape_in_a_flat_parameter",
     case_text(
         R"j({"fqn": "w", "shape": [4, 2], "states": [{"name": "m"}, {"name": "v", "shape": [4], "rule": "r"}]})j",
         R"j("ranks": 2, "rules": {"*": {"flat": [["*"]], "world": 2}})j", whole_side),
     "source.rules.*: state \"v\" of tensor \"w\" has a shape or a rule of its own and cannot be in a flat parameter"},
    {"nested_scalar", with_top(R"j("scalars": {"betas": [0.9, 0.99]})j"), "scalars.betas: a number, text"},
    {"huge_scalar", with_top(R"j("scalars": {"step": 18446744073709551615})j"),
     "scalars.step: 18446744073709551615 is not from"},
    {"no_host_ranks", with_top(R"j("hosts": 0)j"), "hosts: 0 is not from 1 to"},
    // sides
    {"lost_in_target", with_target(R"j("ranks": 2, "lost": [0], "rules": {"*": {"replicated": true}})j"),
     "target.lost: only a source has lost ranks"},
    {"lost_out_of_range", with_source(R"j("ranks": 2, "lost": [2], "rules": {"*": {"replicated": true}})j"),
     "source.lost[0]: 2 is not from 0 to 1"},
    {"lost_twice", with_source(R"j("ranks": 2, "lost": [1, 1], "rules": {"*": {"replicated": true}})j"),
     "source.lost[1]: the rank stands twice"},
    {"keyword_as_rule",
     with_source(R"j("ranks": 2, "rules": {"*": {"replicated": true}, "boxes": {"replicated": true}})j"),
     "source.rules.boxes: 'boxes' is a layout keyword"},
    {"pipeline_of_tensors", with_source(R"j("ranks": 2, "pipeline": 2, "rules": {})j"),
     "source.pipeline: is valid only together with a model"},
    {"uneven_pipeline", with_stages(R"j("ranks": 5, "pipeline": 2)j"),
     "source.pipeline: 5 ranks do not make 2 stages of equal size"},
    {"more_stages_than_layers", with_stages(R"j("ranks": 9, "pipeline": 4)j"),
     "source.pipeline: 4 stages for 3 layers; each needs one at least"},
    {"no_stage", with_stages(R"j("ranks": 9, "pipeline": 0)j"), "source.pipeline: 0 is not from 1 to"},
    {"rule_beyond_its_stage",
     with_stages(R"j("ranks": 6, "pipeline": 3)j", R"j({"*": {"mesh": [6], "placements": ["S(0)"]}})j"),
     "source.rules.*: mesh (6) [S(0)] uses rank 5, there are 2 ranks"},
    // layouts
    {"no_layout", with_rule("{}"), "source.rules.r: no layout"},
    {"misspelt_layout", with_rule(R"j({"chnuk": 0, "over": 4})j"),
     "source.rules.r: no layout: \"chnuk\" is none (did you mean 'chunk'?); one of mesh, chunk"},
    {"two_layouts", with_rule(R"j({"mesh": [4], "chunk": 0})j"), "source.rules.r: both mesh and chunk"},
    {"layout_of_text", with_rule(R"j("mesh")j"), "source.rules.r: an object is expected, this is string"},
    {"flat_without_world", with_rule(R"j({"flat": [["*"]]})j"), "source.rules.r: the field 'world' is missing"},
    {"flat_and_more", with_rule(R"j({"flat": [["*"]], "world": 4, "over": 2})j"), "source.rules.r.over: unknown field"},
    {"flat_of_two_kinds", with_rule(R"j({"flat": [["*"]], "chunk": 0, "world": 4})j"),
     "source.rules.r: both chunk and flat: a layout is of one kind"},
    {"flat_over_none", with_rule(R"j({"flat": [["*"]], "world": 0})j"), "source.rules.r.world: 0 is not from 1 to"},
    {"flat_beyond_ranks", with_rule(R"j({"flat": [["*"]], "world": 5})j"),
     "source.rules.r: flat (at 0 over 5) needs 5 ranks, there are 4 (tensor \"w\")"},
    {"flat_of_no_list", with_rule(R"j({"flat": ["w"], "world": 4})j"),
     "source.rules.r.flat[0]: a list is expected, this is string"},
    {"flat_of_an_empty_list", with_rule(R"j({"flat": [[]], "world": 4})j"), "source.rules.r.flat[0]: no tensor"},
    {"flat_of_a_number", with_rule(R"j({"flat": [[1]], "world": 4})j"),
     "source.rules.r.flat[0][0]: a text is expected"},
    {"flat_of_an_unknown_tensor", with_rule(R"j({"flat": [["w", "v"]], "world": 4})j"),
     "source.rules.r.flat[0][1]: this entry serves no tensor \"v\""},
    {"flat_of_a_misspelt_tensor",
     case_text(R"j({"fqn": "layer.weight", "shape": [4]})j",
               R"j("ranks": 4, "rules": {"*": {"flat": [["layer.weightt"]], "world": 4}})j", whole_side),
     "source.rules.*.flat[0][0]: this entry serves no tensor \"layer.weightt\" (did you mean 'layer.weight'?)"},
    {"flat_with_a_tensor_twice", with_rule(R"j({"flat": [["w"], ["w"]], "world": 4})j"),
     "source.rules.r.flat[1][0]: tensor \"w\" stands twice in the lists"},
    {"flat_with_a_tensor_beside_all", with_rule(R"j({"flat": [["w", "*"]], "world": 4})j"),
     "source.rules.r.flat[0][1]: tensor \"w\" stands twice in the lists"},
    {"flat_without_a_tensor",
     case_text(R"j({"fqn": "a", "shape": [4]}, {"fqn": "b", "shape": [1]})j",
               R"j("ranks": 4, "rules": {"*": {"flat": [["a"]], "world": 4}})j", whole_side),
     "source.rules.*.flat: tensor \"b\", which this entry serves, stands in no list"},
    {"flat_aligned_to_less_than_nothing", with_rule(R"j({"flat": [["*"]], "world": 4, "align": -1})j"),
     "source.rules.r.align: -1 is not from 0 to"},
    {"flat_within_text", with_flat_within(R"j("chunk")j"), "source.rules.r.within: an object is expected"},
    {"flat_within_nothing", with_flat_within("{}"), "source.rules.r.within: no outer rule"},
    {"flat_within_boxes", with_flat_within(R"j({"boxes": {}})j"),
     "source.rules.r.within: an outer rule is a mesh or a chunk"},
    {"flat_within_flat", with_flat_within(R"j({"r": {"flat": [["*"]], "world": 2}})j"),
     "source.rules.r.within.r: an outer rule is a mesh or a chunk"},
    {"flat_within_what_is_served_by_none", with_flat_within(R"j({"row": {"chunk": 0, "over": 2}})j"),
     "source.rules.r.within: no outer rule serves rule \"r\" of tensor \"w\""},
    {"flat_within_rules_of_other_sizes",
     with_flat_within(R"j({"r": {"chunk": 0, "over": 2}, "row": {"mesh": [1], "placements": ["R"]}})j"),
     "source.rules.r.within: the outer rules of \"r\" and \"row\" have 2 and 1 ranks"},
    {"flat_within_another_dim", with_flat_within(R"j({"chunk": 2, "over": 2})j"),
     "source.rules.r.within: chunk(dim 2, over 2) names dim 2, but shape (8, 4) has 2 dims (tensor \"w\")"},
    {"flat_within_beyond_ranks", with_flat_within(R"j({"chunk": 0, "over": 4})j"),
     "source.rules.r: flat (at 0 over 2) within chunk(dim 0, over 4) of 4 ranks needs 8 ranks, there are 4"},
    {"blockcyclic_without_grid", with_rule(R"j({"blockcyclic": {"block": [1, 1]}})j"),
     "source.rules.r.blockcyclic: the field 'grid' is missing"},
    {"blockcyclic_of_other_dims", with_rule(R"j({"blockcyclic": {"block": [1], "grid": [1]}})j"),
     "source.rules.r: blockcyclic (block (1,), grid (1,)) has 1 dims, shape (8, 4) has 2 (tensor \"w\")"},
    {"blockcyclic_of_mixed_dims", with_rule(R"j({"blockcyclic": {"block": [1, 1], "grid": [1]}})j"),
     "source.rules.r.blockcyclic: blockcyclic layout: 2 block sizes, 1 grid sizes"},
    {"blockcyclic_of_no_block", with_rule(R"j({"blockcyclic": {"block": [0, 1], "grid": [1, 1]}})j"),
     "source.rules.r.blockcyclic.block[0]: 0 is not from 1 to"},
    {"blockcyclic_from_outside", with_rule(R"j({"blockcyclic": {"block": [1, 1], "grid": [2, 1], "source": [2, 0]}})j"),
     "source.rules.r.blockcyclic: blockcyclic layout: first owner 2 in dim 0"},
    {"blockcyclic_from_nowhere", with_rule(R"j({"blockcyclic": {"block": [1, 1], "grid": [2, 1], "source": []}})j"),
     "source.rules.r.blockcyclic.source: 0 first owners for 2 dims"},
    {"blockcyclic_beyond_ranks", with_rule(R"j({"blockcyclic": {"block": [1, 1], "grid": [5, 1]}})j"),
     "source.rules.r: blockcyclic (block (1, 1), grid (5, 1)) needs 5 ranks"},
    {"blockcyclic_of_too_many_boxes",
     case_text(R"j({"fqn": "w", "shape": [1099511627776], "rule": "r"})j",
               R"j("ranks": 4, "rules": {"r": {"blockcyclic": {"block": [1], "grid": [4]}}})j", whole_side),
     "source.rules.r: blockcyclic (block (1,), grid (4,)) cuts shape (1099511627776,) into 274877906944 boxes on rank "
     "0"},
    {"mesh_without_placements", with_rule(R"j({"mesh": [4]})j"), "source.rules.r: the field 'placements' is missing"},
    {"mesh_of_no_dims", with_rule(R"j({"mesh": [], "placements": []})j"),
     "source.rules.r.mesh: a mesh has at least one dim"},
    {"mesh_of_zero", with_rule(R"j({"mesh": [4, 0], "placements": ["R", "R"]})j"),
     "source.rules.r.mesh[1]: 0 is not from 1 to"},
    {"hostile_mesh", with_rule(R"j({"mesh": [1099511627776], "placements": ["R"]})j"),
     "source.rules.r.mesh[0]: 1099511627776 is not"},
    {"hostile_mesh_product", with_rule(R"j({"mesh": [65536, 65536], "placements": ["R", "R"]})j"),
     "source.rules.r.mesh[1]: the mesh has more than"},
    {"mesh_beyond_ranks", with_rule(R"j({"mesh": [8], "placements": ["S(0)"]})j"),
     "source.rules.r: mesh (8) [S(0)] uses rank 7"},
    {"placement_count", with_rule(R"j({"mesh": [2, 2], "placements": ["R"]})j"),
     "source.rules.r.placements: 1 placements for 2 mesh dims"},
    {"partial", with_rule(R"j({"mesh": [2, 2], "placements": ["R", "P"]})j"),
     "source.rules.r.placements[1]: \"P\" is a partial sum, which no rank holds as values: reduce it"},
    {"partial_sum", with_rule(R"j({"mesh": [4], "placements": ["Partial(sum)"]})j"),
     "source.rules.r.placements[0]: \"Partial(sum)\" is a partial sum"},
    {"open_placement", with_rule(R"j({"mesh": [4], "placements": ["S(0"]})j"),
     "source.rules.r.placements[0]: \"S(0\" is no placement"},
    {"placement_and_more", with_rule(R"j({"mesh": [4], "placements": ["S(0)x"]})j"), "source.rules.r.placements[0]: "},
    {"placement_number", with_rule(R"j({"mesh": [4], "placements": [0]})j"),
     "source.rules.r.placements[0]: a text is expected"},
    {"strided_without_factor", with_rule(R"j({"mesh": [4], "placements": ["SS(0)"]})j"),
     "source.rules.r.placements[0]: "},
    {"strided_by_zero", with_rule(R"j({"mesh": [4], "placements": ["SS(0,0)"]})j"), "source.rules.r.placements[0]: "},
    {"hostile_factor", with_rule(R"j({"mesh": [4], "placements": ["SS(0,1099511627776)"]})j"),
     "source.rules.r: mesh layout: "},
    {"wrong_tp_first_factor",
     with_rule(R"j({"mesh": [2, 2], "placements": ["SS(0,4)", "S(0)"], "order": "tp_first"})j"), "source.rules.r: "},
    {"unknown_order", with_rule(R"j({"mesh": [4], "placements": ["R"], "order": "dp_first"})j"),
     "source.rules.r.order: unknown order \"dp_first\" (did you mean 'tp_first'?); known are mesh, tp_first"},
    {"too_few_mesh_ranks", with_rule(R"j({"mesh": [4], "placements": ["R"], "ranks": [0, 1]})j"),
     "source.rules.r.ranks: 2 ranks for 4 mesh positions"},
    {"repeated_mesh_rank", with_rule(R"j({"mesh": [2], "placements": ["R"], "ranks": [1, 1]})j"),
     "source.rules.r: mesh layout: "},
    {"negative_mesh_rank", with_rule(R"j({"mesh": [2], "placements": ["R"], "ranks": [0, -1]})j"),
     "source.rules.r.ranks[1]: -1 is not"},
    {"repeated_chunk_rank", with_rule(R"j({"chunk": 0, "over": 2, "ranks": [1, 1]})j"),
     "source.rules.r.ranks: on_ranks layout: rank 1 is at positions 0 and 1"},
    {"too_few_chunk_ranks", with_rule(R"j({"chunk": 0, "over": 3, "ranks": [3, 1]})j"),
     "source.rules.r: chunk(dim 0, over 3) needs 3 ranks, there are 2 (tensor \"w\")"},
    {"chunk_rank_of_another_side", with_rule(R"j({"chunk": 0, "over": 2, "ranks": [4, 1]})j"),
     "source.rules.r: chunk(dim 0, over 2) on 2 listed ranks needs 5 ranks, there are 4"},
    {"negative_rank_of_replicas", with_rule(R"j({"replicated": true, "ranks": [-1]})j"),
     "source.rules.r.ranks[0]: -1 is not"},
    {"ranks_of_no_list", with_rule(R"j({"replicated": true, "ranks": 2})j"),
     "source.rules.r.ranks: a list is expected"},
    {"ranks_of_boxes", with_rule(R"j({"boxes": {}, "ranks": [0]})j"), "source.rules.r.ranks: unknown field"},
    {"repeated_flat_rank", with_rule(R"j({"flat": [["*"]], "world": 2, "ranks": [3, 0, 3]})j"),
     "source.rules.r: on_ranks layout: rank 3 is at positions 0 and 2"},
    {"too_few_flat_ranks", with_rule(R"j({"flat": [["*"]], "world": 3, "ranks": [3, 0]})j"),
     "source.rules.r: flat (at 0 over 3) needs 3 ranks, there are 2"},
    {"dim_out_of_range", with_rule(R"j({"mesh": [4], "placements": ["S(2)"]})j"), "source.rules.r: "},
    {"negative_dim_out_of_range", with_rule(R"j({"chunk": -3, "over": 4})j"), "source.rules.r: "},
    {"chunk_without_over", with_rule(R"j({"chunk": 0})j"), "source.rules.r: the field 'over' is missing"},
    {"chunk_over_none", with_rule(R"j({"chunk": 0, "over": 0})j"), "source.rules.r.over: 0 is not from 1 to"},
    {"chunk_over_too_many", with_rule(R"j({"chunk": 0, "over": 5})j"), "source.rules.r: "},
    {"replicated_false", with_rule(R"j({"replicated": false})j"), "source.rules.r.replicated: only true is valid"},
    {"replicated_and_more", with_rule(R"j({"replicated": true, "over": 4})j"), "source.rules.r.over: unknown field"},
    {"boxes_of_no_rank", with_rule(R"j({"boxes": {"x": []}})j"), "source.rules.r.boxes.x: the key is no rank"},
    {"boxes_of_rank_01", with_rule(R"j({"boxes": {"01": []}})j"), "source.rules.r.boxes.01: the key is no rank"},
    {"boxes_of_foreign_rank", with_rule(R"j({"boxes": {"4": [[[0, 0], [1, 1]]]}})j"),
     "source.rules.r: boxes layout: rank 4"},
    {"box_of_one_list", with_rule(R"j({"boxes": {"0": [[[0, 0]]]}})j"),
     "source.rules.r.boxes.0[0]: a box is [[offsets], [sizes]]"},
    {"box_of_mixed_dims", with_rule(R"j({"boxes": {"0": [[[0, 0], [1]]]}})j"),
     "source.rules.r.boxes.0[0]: 2 offsets and 1 sizes"},
    {"box_of_other_dims", with_rule(R"j({"boxes": {"0": [[[0], [1]]]}})j"), "source.rules.r: boxes layout: "},
    {"box_outside", with_rule(R"j({"boxes": {"0": [[[0, 0], [9, 1]]]}})j"),
     "source.rules.r: boxes layout: box [0:9, 0:1] of rank 0 leaves"},
    {"box_negative", with_rule(R"j({"boxes": {"0": [[[-1, 0], [1, 1]]]}})j"),
     "source.rules.r.boxes.0[0][0][0]: -1 is not from 0 to"},
    {"boxes_overlap", with_rule(R"j({"boxes": {"0": [[[0, 0], [2, 2]], [[1, 1], [2, 2]]]}})j"),
     "source.rules.r: boxes layout: boxes [0:2, 0:2] and [1:3, 1:3] of rank 0 overlap"},
};

// A schema has no words for what fields say of each other and of the tensors. 2.0 is an integer to it, and any size of number fits.
// clang-format off
const std::set<std::string_view> beyond_a_schema{
    "blockcyclic_beyond_ranks", "blockcyclic_from_nowhere", "blockcyclic_from_outside", "blockcyclic_of_mixed_dims",
    "blockcyclic_of_other_dims", "blockcyclic_of_too_many_boxes", "box_of_mixed_dims", "box_of_other_dims",
    "box_outside", "boxes_of_foreign_rank", "boxes_overlap", "bytes_overflow", "chunk_over_too_many",
    "chunk_rank_of_another_side", "dim_out_of_range", "dtype_of_unknown_state", "flat_beyond_ranks", "flat_of_a_misspelt_tensor",
    "flat_of_an_unknown_tensor", "flat_with_a_tensor_beside_all", "flat_with_a_tensor_twice",
    "flat_within_another_dim", "flat_within_beyond_ranks", "flat_within_rules_of_other_sizes",
    "flat_within_what_is_served_by_none", "flat_without_a_tensor", "fractional_ranks", "hostile_factor",
    "hostile_mesh_product", "huge_scalar", "misspelt_rule_of_a_tensor", "lost_out_of_range", "mesh_beyond_ranks", "more_stages_than_layers",
    "negative_dim_out_of_range", "no_entry_for_a_tensor", "placement_count", "repeated_state_of_a_tensor",
    "repeated_tensor",
    "rule_beyond_its_stage", "state_of_another_shape_in_a_flat_parameter",
    "state_of_another_shape_without_a_rule", "too_few_chunk_ranks", "too_few_flat_ranks", "too_few_mesh_ranks", "uneven_pipeline",
    "volume_overflow", "wrong_tp_first_factor"};
// clang-format on

}  // namespace

BOOST_DATA_TEST_CASE(the_schema_refuses_what_it_has_words_for, boost::unit_test::data::make(refused_files), refusal) {
  static const JsonSchema schema(case_schema());
  Json json;
  try {
    json = parse_json(refusal.text);
  } catch (const CaseError&) {
    return;
  }
  BOOST_TEST(schema.accepts(json) == beyond_a_schema.contains(refusal.title));
}

BOOST_DATA_TEST_CASE(names_the_place, boost::unit_test::data::make(refused_files), refusal) {
  try {
    parse_case(refusal.text);
    BOOST_ERROR("accepted: " << refusal.text);
  } catch (const CaseError& error) {
    const std::string what = error.what();
    BOOST_TEST(what.substr(0, refusal.message.size()) == refusal.message);
    BOOST_TEST(what.find('\n') == std::string::npos);
  }
}

struct RefusedDegrees {
  const char* text;
  const char* message;
};
std::ostream& operator<<(std::ostream& out, const RefusedDegrees& refusal) {
  return out << refusal.text;
}

const RefusedDegrees refused_degrees[] = {
    {"", "--source : kinds and numbers of ranks are expected, such as fsdp=8,tp=2"},
    {"fsdp", "--source fsdp: kinds and numbers of ranks are expected"},
    {"fsdp=", "--source fsdp=: '' is no number of ranks"},
    {"fsdp=0", "--source fsdp=0: '0' is no number of ranks"},
    {"fsdp=8x", "--source fsdp=8x: '8x' is no number of ranks"},
    {"fspd=8", "--source fspd=8: 'fspd' is unknown (did you mean 'fsdp'?); known are fsdp, hsdp, ddp, tp, ep"},
    {"fsdp=8,fsdp=4", "--source fsdp=8,fsdp=4: fsdp stands twice"},
    {"fsdp=8,ddp=2", "--source fsdp=8,ddp=2: one of ddp, fsdp and hsdp is expected; hsdp=RxS"},
    {"hsdp=8", "--source hsdp=8: hsdp=RxS is expected"},
    {"fsdp=8,ep=3", "--source fsdp=8,ep=3: ep=3 does not divide the 8 shards"},
    {"ddp=8,ep=2", "--source ddp=8,ep=2: ep=2 does not divide the 1 shards"},
    {"fsdp=16777216,tp=2", "--source fsdp=16777216,tp=2: more than 16777216 ranks"},
};

BOOST_DATA_TEST_CASE(degrees_are_refused_by_name, boost::unit_test::data::make(refused_degrees), refusal) {
  BOOST_CHECK_EXCEPTION(parse_degrees("--source", refusal.text), CaseError, [&](const CaseError& error) {
    BOOST_TEST(std::string(error.what()).starts_with(refusal.message), error.what());
    return true;
  });
}

BOOST_AUTO_TEST_CASE(blocks_that_ranks_would_share_are_refused_by_name) {
  const MadeCase made{.name = "",
                      .tensors = {{"a.o_proj.weight", {64, 512}}, {"a.q_proj.weight", {64, 300}}},
                      .optimizer = "adam8bit",
                      .source = {.shards = 2},
                      .target = {.shards = 2}};
  BOOST_CHECK_EXCEPTION(case_text(made), CaseError, [](const CaseError& error) {
    BOOST_TEST(
        std::string(error.what()).starts_with("optimizer adam8bit: tensor a.q_proj.weight has rows of 300 elements"),
        error.what());
    return true;
  });
  MadeCase split = made;
  split.tensors.pop_back();
  BOOST_CHECK_NO_THROW(case_text(split));
  split.target.tensor = 4;
  BOOST_CHECK_EXCEPTION(case_text(split), CaseError, [](const CaseError& error) {
    BOOST_TEST(std::string(error.what()).find("a.o_proj.weight has rows of 512 elements") != std::string::npos,
               error.what());
    return true;
  });
}

BOOST_AUTO_TEST_CASE(a_missing_file_is_named) {
  BOOST_CHECK_EXCEPTION(load_case("/nonexistent/x.json"), CaseError, [](const CaseError& error) {
    return std::string(error.what()) == "/nonexistent/x.json: No such file or directory";
  });
}

BOOST_AUTO_TEST_CASE(deep_nesting_is_refused) {
  BOOST_CHECK_THROW(parse_case(std::string(1'000'000, '[')), CaseError);
}

BOOST_AUTO_TEST_SUITE_END()
