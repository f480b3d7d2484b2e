// SPDX-License-Identifier: Apache-2.0
#include "case/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
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
#include "support/list_of.hpp"
#include "support/nearest.hpp"

namespace shardwire {
namespace {

constexpr std::size_t max_case_bytes = 64u << 20;
constexpr Extent max_extent = std::numeric_limits<Extent>::max();

void refuse_keyword(const Node& node, const std::string& name) {
  if (is_layout_keyword(name)) node.refuse(fmt::format("'{}' is a layout keyword and cannot name a rule", name));
}

DType parse_dtype_of(const Node& node) {
  const std::string name = node.text();
  const auto dtype = parse_dtype(name);
  if (!dtype) node.refuse_unknown("dtype", name, dtype_names(), dtype_meant_by(name));
  return *dtype;
}

// The types of states that do not give their own.
class StateTypes {
 public:
  explicit StateTypes(const Node& root) : root_(root) {
    if (const auto common = root.find("dtype")) common_ = parse_dtype_of(*common);
    const auto named = root.find("dtypes");
    if (!named) return;
    for (const auto& [name, value] : named->members()) named_.emplace(name, parse_dtype_of(value));
  }
  [[nodiscard]] DType of(const std::string& state) const {
    const auto named = named_.find(state);
    return named == named_.end() ? common_ : named->second;
  }
  // Refuses types of states that no tensor has.
  void require_known(const std::vector<std::string>& states) const {
    if (named_.empty()) return;
    for (const auto& [name, node] : root_.at("dtypes").members()) {
      if (std::find(states.begin(), states.end(), name) == states.end()) {
        const std::vector<std::string_view> known(states.begin(), states.end());
        std::vector<std::string> shown;
        for (const std::string& state : states) shown.push_back(quoted(state));
        node.refuse(fmt::format("no tensor has this state{}; known are {}", support::suggestion(name, known),
                                support::list_of(shown)));
      }
    }
  }

 private:
  const Node& root_;
  DType common_ = DType::f32;
  std::map<std::string, DType> named_;
};

std::vector<CaseState> parse_states(const Node& root, const StateTypes& types) {
  const auto node = root.find("states");
  std::vector<CaseState> states;
  if (!node) {
    for (const char* name : {"master", "exp_avg", "exp_avg_sq"}) states.push_back({name, types.of(name)});
    return states;
  }
  std::set<std::string> names;
  for (const Node& state : node->elements()) {
    const std::string name = state.name();
    if (!names.insert(name).second) state.refuse("the state stands twice");
    states.push_back({name, types.of(name)});
  }
  if (states.empty()) node->refuse("no state");
  return states;
}

TensorList parse_model(const Node& node, const Node& root) {
  const std::string name = node.text();
  const Model* model = find_model(name);
  if (model == nullptr) node.refuse_unknown("model", name, model_names());
  int layers = model->layers;
  if (const auto wanted = root.find("layers")) {
    const Extent count = wanted->integer(0, max_extent);
    if (count > model->layers) wanted->refuse(fmt::format("{} has {} layers", model->name, model->layers));
    layers = static_cast<int>(count);
  }
  const auto embeddings = root.find("embeddings");
  return {.tensors = tensors_of(*model, layers, embeddings ? embeddings->boolean() : true),
          .of_model = true,
          .layers = layers};
}

std::string parse_rule(const Node& node) {
  std::string rule = node.name();
  refuse_keyword(node, rule);
  return rule;
}

CaseTensor parse_tensor(const Node& node) {
  node.require_fields({"fqn", "shape", "rule", "states"});
  CaseTensor tensor{.fqn = node.at("fqn").name(), .shape = node.at("shape").shape(max_extent), .rule = "*"};
  if (const auto rule = node.find("rule")) tensor.rule = parse_rule(*rule);
  return tensor;
}

// Adds a tensor that lists its states. Each state with a shape or a rule of its own is an entry of its own.
void add_with_states(const CaseTensor& tensor, const Node& node, const StateTypes& types, TensorList& list) {
  std::vector<CaseState> common;
  std::set<std::string> names;
  const auto add = [&](CaseTensor entry, std::vector<CaseState> states) {
    entry.states = list.states.size();
    list.states.push_back(std::move(states));
    list.tensors.push_back(std::move(entry));
  };
  for (const Node& one : node.elements()) {
    one.require_fields({"name", "shape", "dtype", "rule"});
    CaseState state{.name = one.at("name").name()};
    if (!names.insert(state.name).second) one.at("name").refuse("the state stands twice");
    const auto dtype = one.find("dtype");
    state.dtype = dtype ? parse_dtype_of(*dtype) : types.of(state.name);
    const auto shape = one.find("shape");
    const auto rule = one.find("rule");
    CaseTensor alone = tensor;
    if (shape) alone.shape = shape->shape(max_extent);
    if (rule) alone.rule = parse_rule(*rule);
    if (alone.shape != tensor.shape && !rule) {
      shape->refuse(fmt::format("differs from {} of the tensor, so the state needs a \"rule\" of its own",
                                to_string(tensor.shape)));
    }
    if (alone.shape == tensor.shape && alone.rule == tensor.rule) {
      common.push_back(std::move(state));
    } else {
      alone.states_alone = true;
      add(std::move(alone), {std::move(state)});
    }
  }
  if (names.empty()) node.refuse("no state");
  if (!common.empty()) add(tensor, std::move(common));
}

TensorList parse_tensors(const Node& root, const StateTypes& types) {
  const auto model = root.find("model");
  const auto tensors = root.find("tensors");
  if (model && tensors) model->refuse("model stands in place of tensors; both are given");
  TensorList list;
  if (model) {
    list = parse_model(*model, root);
    if (list.tensors.empty()) root.refuse("no tensor is left of the model");
    list.states.push_back(parse_states(root, types));
    return list;
  }
  for (const char* field : {"layers", "embeddings"}) {
    if (const auto found = root.find(field)) found->refuse("is valid only together with a model");
  }
  if (!tensors) root.refuse("one of the fields 'model' and 'tensors' is missing");
  list.states.push_back(parse_states(root, types));
  std::set<std::string> names;
  std::size_t listed = 0;
  for (const Node& node : tensors->elements()) {
    CaseTensor tensor = parse_tensor(node);
    tensor.listed = listed++;
    if (!names.insert(tensor.fqn).second) node.at("fqn").refuse("a tensor of this name stands before");
    if (const auto states = node.find("states")) {
      add_with_states(tensor, *states, types, list);
    } else {
      list.tensors.push_back(std::move(tensor));
    }
  }
  if (list.tensors.empty()) tensors->refuse("no tensor");
  return list;
}

// Each name once. Those of the case are left out if the file does not list them and no tensor has them.
std::vector<std::string> names_of_states(const Node& root, const TensorList& list) {
  const bool common =
      root.has("states") || std::ranges::any_of(list.tensors, [](const CaseTensor& one) { return one.states == 0; });
  std::vector<std::string> names;
  std::set<std::string> known;
  for (std::size_t i = common ? 0 : 1; i < list.states.size(); ++i) {
    for (const CaseState& state : list.states[i]) {
      if (known.insert(state.name).second) names.push_back(state.name);
    }
  }
  return names;
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
void check_sizes(const TensorList& list) {
  ByteCount total = 0;
  for (const CaseTensor& tensor : list.tensors) {
    try {
      const auto elements = static_cast<ByteCount>(volume_of(tensor.shape));
      for (const CaseState& state : list.states_of(tensor)) {
        const ByteCount bytes = support::multiply(elements, item_size(state.dtype), "the size in bytes");
        total = support::add(total, bytes, "the size of all tensors");
      }
    } catch (const Error& error) {
      throw CaseError(fmt::format("{}.shape: {}", list.place(tensor), error.what()));
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
  const StateTypes types(root);
  const TensorList list = parse_tensors(root, types);
  result.tensors = list.of_model ? list.tensors.size() : root.at("tensors").json().size();
  result.states = names_of_states(root, list);
  types.require_known(result.states);
  check_sizes(list);
  result.scalars = parse_scalars(root);
  if (const auto hosts = root.find("hosts")) result.ranks_per_host = static_cast<int>(hosts->integer(1, max_ranks));
  result.source = parse_side(root.at("source"), list, true);
  result.target = parse_side(root.at("target"), list, false);
  for (const CaseTensor& tensor : list.tensors) {
    result.tensor_states += list.states_of(tensor).size();
    if (volume_of(tensor.shape) != 1) continue;
    for (const CaseState& state : list.states_of(tensor)) {
      result.by_value.push_back({{tensor.fqn, state.name}, state.dtype, tensor.shape});
    }
  }
  return result;
}

ByteCount needed_bytes(const Case& job) {
  constexpr const char* what = "the size of all target ranks";
  ByteCount total = 0;
  for (const Section& section : job.target.layout.sections) {
    for (const Rank rank : section.ranks) {
      for (const TensorLayout& tensor : section.manifest->tensors) {
        for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, rank)) {  // without padding
          const auto volume = static_cast<ByteCount>(placed.box.volume());
          total = support::add(total, support::multiply(volume, item_size(tensor.spec.dtype), what), what);
        }
      }
    }
  }
  return total;
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
