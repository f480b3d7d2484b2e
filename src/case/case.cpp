// SPDX-License-Identifier: Apache-2.0
#include "case/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "case/json_node.hpp"
#include "case/layout_parser.hpp"
#include "case/models.hpp"
#include "case/side.hpp"
#include "case/text_file.hpp"
#include "geometry/dtypes.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_case_bytes = 64u << 20;
constexpr Extent max_extent = std::numeric_limits<Extent>::max();

void refuse_keyword(const Node& node, const std::string& name) {
  if (is_layout_keyword(name)) node.refuse(fmt::format("'{}' is a layout keyword and cannot name a rule", name));
}

TensorList parse_model(const Node& node, const Node& root) {
  const std::string name = node.text();
  const Model* model = find_model(name);
  if (model == nullptr) node.refuse("unknown model; known are " + model_names());
  int layers = model->layers;
  if (const auto wanted = root.find("layers")) {
    const Extent count = wanted->integer(0, max_extent);
    if (count > model->layers) wanted->refuse(fmt::format("{} has {} layers", model->name, model->layers));
    layers = static_cast<int>(count);
  }
  const auto embeddings = root.find("embeddings");
  return {tensors_of(*model, layers, embeddings ? embeddings->boolean() : true), true, layers};
}

CaseTensor parse_tensor(const Node& node) {
  node.require_fields({"fqn", "shape", "rule"});
  CaseTensor tensor;
  tensor.fqn = node.at("fqn").name();
  const Node shape = node.at("shape");
  std::vector<Extent> extents;
  for (const Node& extent : shape.elements()) extents.push_back(extent.integer(0, max_extent));
  if (extents.size() > max_dims)
    shape.refuse(fmt::format("{} dims; at most {} are supported", extents.size(), max_dims));
  tensor.shape = Extents(std::span<const Extent>(extents));
  tensor.rule = "*";
  if (const auto rule = node.find("rule")) {
    tensor.rule = rule->name();
    refuse_keyword(*rule, tensor.rule);
  }
  return tensor;
}

TensorList parse_tensors(const Node& root) {
  const auto model = root.find("model");
  const auto tensors = root.find("tensors");
  if (model && tensors) model->refuse("model stands in place of tensors; both are given");
  if (model) {
    TensorList list = parse_model(*model, root);
    if (list.tensors.empty()) root.refuse("no tensor is left of the model");
    return list;
  }
  for (const char* field : {"layers", "embeddings"}) {
    if (const auto found = root.find(field)) found->refuse("is valid only together with a model");
  }
  if (!tensors) root.refuse("one of the fields 'model' and 'tensors' is missing");
  TensorList list;
  std::set<std::string> names;
  for (const Node& node : tensors->elements()) {
    list.tensors.push_back(parse_tensor(node));
    if (!names.insert(list.tensors.back().fqn).second) node.at("fqn").refuse("a tensor of this name stands before");
  }
  if (list.tensors.empty()) tensors->refuse("no tensor");
  return list;
}

DType parse_dtype_of(const Node& node) {
  const auto dtype = parse_dtype(node.text());
  if (!dtype) node.refuse("unknown dtype; known are " + dtype_names());
  return *dtype;
}

std::vector<std::string> parse_states(const Node& root) {
  const auto node = root.find("states");
  if (!node) return {"master", "exp_avg", "exp_avg_sq"};
  std::vector<std::string> states;
  for (const Node& state : node->elements()) {
    const std::string name = state.name();
    if (std::find(states.begin(), states.end(), name) != states.end()) state.refuse("the state stands twice");
    states.push_back(name);
  }
  if (states.empty()) node->refuse("no state");
  return states;
}

// One dtype per state, in order.
std::vector<DType> parse_dtypes(const Node& root, const std::vector<std::string>& states) {
  const auto common = root.find("dtype");
  std::vector<DType> dtypes(states.size(), common ? parse_dtype_of(*common) : DType::f32);
  const auto node = root.find("dtypes");
  if (!node) return dtypes;
  for (const auto& [name, value] : node->members()) {
    const auto state = std::find(states.begin(), states.end(), name);
    if (state == states.end()) value.refuse("unknown state");
    dtypes[static_cast<std::size_t>(state - states.begin())] = parse_dtype_of(value);
  }
  return dtypes;
}

std::vector<std::pair<std::string, Value>> parse_scalars(const Node& root) {
  std::vector<std::pair<std::string, Value>> scalars;
  const auto node = root.find("scalars");
  if (!node) return scalars;
  for (const auto& [name, value] : node->members()) {
    if (name.empty()) value.refuse("an empty name");
    const Json& json = value.json();
    Value parsed;
    if (json.is_boolean()) parsed = json.get<bool>();
    if (json.is_number_integer()) parsed = value.integer(std::numeric_limits<Extent>::min(), max_extent);
    if (json.is_number_float()) parsed = json.get<double>();
    if (json.is_string()) parsed = json.get<std::string>();
    if (json.is_structured()) value.refuse("a number, text, true, false or null is expected");
    scalars.emplace_back(name, std::move(parsed));
  }
  return scalars;
}

// All other code counts sizes in 64 bits.
void check_sizes(const Shared& shared) {
  ByteCount total = 0;
  for (std::size_t i = 0; i < shared.list.tensors.size(); ++i) {
    try {
      const auto elements = static_cast<ByteCount>(volume_of(shared.list.tensors[i].shape));
      for (const DType dtype : shared.dtypes) {
        const ByteCount bytes = support::multiply(elements, item_size(dtype), "the size in bytes");
        total = support::add(total, bytes, "the size of all tensors");
      }
    } catch (const Error& error) {
      throw CaseError(fmt::format("{}.shape: {}", shared.list.place(i), error.what()));
    }
  }
  if (total > static_cast<ByteCount>(max_extent)) throw CaseError("tensors: the size of all tensors overflows 63 bits");
}

}  // namespace

Case parse_case(const std::string& text) {
  if (text.size() > max_case_bytes) throw CaseError("1:1: a case file has at most 64 MiB");
  const Json json = parse_json(text);
  const Node root(json, "");
  root.require_fields({"name", "dtype", "dtypes", "states", "scalars", "model", "layers", "embeddings", "tensors",
                       "source", "target", "hosts"});
  Case result;
  if (const auto name = root.find("name")) result.name = name->text();
  const TensorList list = parse_tensors(root);
  result.tensors = list.tensors.size();
  result.states = parse_states(root);
  const std::vector<DType> dtypes = parse_dtypes(root, result.states);
  const Shared shared{list, result.states, dtypes};
  check_sizes(shared);
  result.scalars = parse_scalars(root);
  if (const auto hosts = root.find("hosts")) result.ranks_per_host = static_cast<int>(hosts->integer(1, max_ranks));
  result.source = parse_side(root.at("source"), shared, true);
  result.target = parse_side(root.at("target"), shared, false);
  for (const CaseTensor& tensor : list.tensors) {
    if (volume_of(tensor.shape) != 1) continue;
    for (std::size_t s = 0; s < dtypes.size(); ++s) {
      result.by_value.push_back({{tensor.fqn, result.states[s]}, dtypes[s], tensor.shape});
    }
  }
  return result;
}

std::vector<Gap> value_gaps(const Case& job, Rank target, std::span<const Rank> also_lost) {
  std::set<Rank> lost(job.source.lost.begin(), job.source.lost.end());
  lost.insert(also_lost.begin(), also_lost.end());
  std::vector<Gap> gaps;
  if (std::cmp_less(lost.size(), job.source.ranks)) return gaps;
  for (const TensorSpec& spec : job.by_value) {
    gaps.push_back({spec.key.fqn, spec.key.state, Box::whole(spec.shape), target});
  }
  return gaps;
}

Case load_case(const std::string& path) {
  const std::string text = read_text(path, max_case_bytes);
  try {
    return parse_case(text);
  } catch (const CaseError& error) {
    throw CaseError(fmt::format("{}: {}", shown_name(path), error.what()));
  }
}

}  // namespace shardwire
