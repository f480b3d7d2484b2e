// SPDX-License-Identifier: Apache-2.0
#include "case/made_case.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "case/optimizer_states.hpp"
#include "support/nearest.hpp"

namespace shardwire {
namespace {

const Optimizer& find_optimizer(const std::string& name) {
  for (const Optimizer& one : optimizers()) {
    if (one.name == name) return one;
  }
  throw CaseError(fmt::format("optimizer '{}' is unknown{}", name, support::known_words(name, optimizer_names())));
}

// A tensor's rule on both sides.
struct Rule {
  Split split;
  int group = -1;  ///< of its expert
};

// Gives tensors the names of rules, and writes the entries of both sides.
class RuleTable {
 public:
  explicit RuleTable(const MadeCase& made) : sides_{made.source, made.target} {
    for (const CaseTensor& tensor : made.tensors) experts_ = std::max(experts_, split_of(tensor).expert + 1);
    for (const Degrees& side : sides_) {
      if (side.experts > 1 && experts_ == 0) {
        throw CaseError(fmt::format("ep={}: no tensor belongs to an expert; leave out ep", side.experts));
      }
      if (experts_ % side.experts != 0) {
        throw CaseError(fmt::format("ep={} does not divide the {} experts of a layer", side.experts, experts_));
      }
    }
    groups_ = std::lcm(sides_[0].experts, sides_[1].experts);
  }

  // Splits that no degree makes use of are one rule.
  std::string name_of(Split split) {
    if (sides_[0].tensor == 1 && sides_[1].tensor == 1) split.dim = -1;
    if (split.dim < 0) split.parts = 1;
    const int group = groups_ == 1 || split.expert < 0 ? -1 : split.expert / (experts_ / groups_);
    split.expert = -1;
    const std::string_view which = word_of(split);
    std::string name = split.sharded ? std::string(which) : fmt::format("{} factor", split.dim < 0 ? "whole" : which);
    if (split.parts > 1) name = fmt::format("{} of {}", name, split.parts);
    if (group >= 0) name = fmt::format("experts {} {}", group, name);
    if (split == Split{} && group < 0 && sides_[0].tensor == 1 && sides_[1].tensor == 1) name = "*";
    rules_.try_emplace(name, Rule{split, group});
    return name;
  }

  [[nodiscard]] std::string side_json(int side) const {
    std::map<std::string, std::string> layouts;
    for (const auto& [name, rule] : rules_) layouts[name] = layout_json(sides_[side], rule.split, rule.group, groups_);
    const bool one =
        std::ranges::all_of(layouts, [&](const auto& rule) { return rule.second == layouts.begin()->second; });
    if (one) layouts = {{"*", layouts.begin()->second}};
    std::string text;
    for (const auto& [name, layout] : layouts) {
      text += fmt::format("{}\n    {}: {}", text.empty() ? "" : ",", quoted(name), layout);
    }
    return fmt::format("{{\"ranks\": {}, \"rules\": {{{}\n  }}}}", sides_[side].ranks(), text);
  }

 private:
  Degrees sides_[2];
  int experts_ = 0;  ///< of a layer
  int groups_ = 1;   ///< of experts that stay together on both sides
  std::map<std::string, Rule> rules_;
};

std::string rule_field(const std::string& rule) {
  return rule == "*" ? std::string() : fmt::format(", \"rule\": {}", quoted(rule));
}

std::string shape_json(const Extents& shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

std::string state_json(const OptimizerState& state, const CaseTensor& tensor, const std::string& tensor_rule,
                       RuleTable& rules) {
  std::string text = fmt::format("{{\"name\": \"{}\"", state.name);
  if (state.dtype != "f32") text += fmt::format(", \"dtype\": \"{}\"", state.dtype);
  if (state.shape != tensor.shape) text += fmt::format(", \"shape\": {}", shape_json(state.shape));
  const std::string rule = rules.name_of(state.split);
  if (state.shape != tensor.shape || rule != tensor_rule) text += fmt::format(", \"rule\": {}", quoted(rule));
  return text + "}";
}

}  // namespace

std::string optimizer_names() {
  std::vector<std::string_view> names;
  for (const Optimizer& one : optimizers()) names.push_back(one.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string case_text(const MadeCase& made) {
  const Optimizer& optimizer = find_optimizer(made.optimizer);
  const std::array sides{made.source, made.target};
  RuleTable rules(made);
  std::string tensors;
  for (const CaseTensor& tensor : made.tensors) {
    const std::string rule = rules.name_of(split_of(tensor));
    std::string states;
    for (const OptimizerState& state : optimizer.own(tensor, sides)) {
      states += fmt::format("{}{}", states.empty() ? "" : ", ", state_json(state, tensor, rule, rules));
    }
    if (!states.empty()) states = fmt::format(", \"states\": [{}]", states);
    tensors += fmt::format("{}\n    {{\"fqn\": {}, \"shape\": {}{}{}}}", tensors.empty() ? "" : ",", quoted(tensor.fqn),
                           shape_json(tensor.shape), rule_field(rule), states);
  }
  constexpr std::string_view form = R"({{
  "name": {},
  "states": ["{}"],
  "dtype": "f32",
  "tensors": [{}
  ],
  "source": {},
  "target": {}
}}
)";
  return fmt::format(form, quoted(made.name), fmt::join(optimizer.common, "\", \""), tensors, rules.side_json(0),
                     rules.side_json(1));
}

}  // namespace shardwire
