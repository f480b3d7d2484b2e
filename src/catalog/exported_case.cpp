// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "catalog/description.hpp"
#include "geometry/layout_rule.hpp"
#include "plan/aliases.hpp"
#include "shardwire/error.hpp"
#include "shardwire/inventory.hpp"
#include "support/json_text.hpp"

namespace shardwire {
namespace {

using support::json_text;

// One key on one side: its declaration in each section that has it.
using Parts = std::map<std::size_t, const TensorLayout*>;

std::string list_json(const auto& numbers) {
  return fmt::format("[{}]", fmt::join(numbers.begin(), numbers.end(), ", "));
}

std::vector<Extent> field(const RuleDescription& rule, std::string_view name) {
  const auto found = std::ranges::find(rule.fields, name, [](const auto& one) { return std::string_view(one.first); });
  return found == rule.fields.end() ? std::vector<Extent>() : found->second;
}

std::vector<Extent> ranks_from(Extent first, Extent count, Extent step = 1) {
  std::vector<Extent> ranks(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = first + static_cast<Extent>(i) * step;
  return ranks;
}

// `kind`: index of the alternative in Placement.
std::string placement_json(Extent kind, Extent dim, Extent factor) {
  if (kind == 0) return "\"R\"";
  return kind == 1 ? fmt::format("\"S({})\"", dim) : fmt::format("\"SS({},{})\"", dim, factor);
}

Extent positions_of(const RuleDescription& mesh) {
  const std::vector<Extent> shape = field(mesh, "shape");
  return std::accumulate(shape.begin(), shape.end(), Extent{1}, std::multiplies<>());
}

std::string mesh_fields(const RuleDescription& rule) {
  const std::vector<Extent> shape = field(rule, "shape");
  const std::vector<Extent> numbers = field(rule, "placements");  // three of each placement
  std::vector<std::string> placements;
  for (std::size_t i = 0; i < numbers.size(); i += 3) {
    placements.push_back(placement_json(numbers[i], numbers[i + 1], numbers[i + 2]));
  }
  std::string text = fmt::format(R"("mesh": {}, "placements": [{}])", list_json(shape), fmt::join(placements, ", "));
  if (field(rule, "tp_first").front() != 0) text += R"(, "order": "tp_first")";
  std::vector<Extent> ranks = field(rule, "ranks");
  const std::vector<Extent> first = field(rule, "first");
  if (!first.empty() && first.front() > 0) ranks = ranks_from(first.front(), positions_of(rule));
  return ranks.empty() ? text : fmt::format(R"({}, "ranks": {})", text, list_json(ranks));
}

// A layout in the words of case files; empty without words for it.
std::string fields_of(const RuleDescription& rule) {
  if (rule.kind == "replicated") return R"("replicated": true)";
  if (rule.kind == "chunk") {
    return fmt::format(R"("chunk": {}, "over": {})", field(rule, "dim").front(), field(rule, "over").front());
  }
  if (rule.kind == "blockcyclic") {
    return fmt::format(R"("blockcyclic": {{"block": {}, "grid": {}, "source": {}}})", list_json(field(rule, "block")),
                       list_json(field(rule, "grid")), list_json(field(rule, "source")));
  }
  if (rule.kind == "mesh") return mesh_fields(rule);
  if (rule.kind != "on_ranks") return {};
  const std::string inner = fields_of(rule.inner.front());
  if (inner.empty() || inner.find(R"("ranks")") != std::string::npos) return {};
  std::vector<Extent> ranks = field(rule, "listed");
  if (const std::vector<Extent> regular = field(rule, "ranks"); !regular.empty()) {
    ranks = ranks_from(regular[0], regular[1], regular.size() == 3 ? regular[2] : 1);
  }
  // Case files list one rank for each position of a mesh.
  const RuleDescription& placed = rule.inner.front();
  if (placed.kind == "mesh" && positions_of(placed) != static_cast<Extent>(ranks.size())) return {};
  return fmt::format(R"({}, "ranks": {})", inner, list_json(ranks));
}

std::string boxes_text(const std::vector<PlacedBox>& boxes) {
  std::string text;
  for (const PlacedBox& placed : boxes) {
    text +=
        fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", list_json(placed.box.offset), list_json(placed.box.size));
  }
  return text;
}

class ExportedSide {
 public:
  /// `restores_lost`: a rank in no section has what the first section with a tensor gives it; else it has nothing.
  ExportedSide(const JobLayout& side, const NameClasses& names, bool restores_lost)
      : ranks_(side.ranks), restores_lost_(restores_lost), section_of_(static_cast<std::size_t>(side.ranks), none) {
    for (std::size_t i = 0; i < side.sections.size(); ++i) {
      for (const Rank rank : side.sections[i].ranks) section_of_[static_cast<std::size_t>(to_int(rank))] = i;
      for (const TensorLayout& tensor : side.sections[i].manifest->tensors) {
        const auto [states, fresh] = parts_.try_emplace(names.name_of(tensor.spec.key.fqn));
        if (fresh) order_.push_back(states->first);
        states->second[tensor.spec.key.state].emplace(i, &tensor);
      }
    }
  }

  // In the order of the manifests.
  [[nodiscard]] const std::vector<std::string_view>& names() const { return order_; }
  [[nodiscard]] bool has(std::string_view name) const { return parts_.contains(name); }
  [[nodiscard]] const std::map<std::string_view, Parts>& states_of(std::string_view name) const {
    return parts_.at(name);
  }

  [[nodiscard]] std::string layout_json(const Parts& parts) const {
    const TensorLayout& first = *parts.begin()->second;
    const bool one = std::ranges::all_of(parts, [&](const auto& part) { return part.second->layout == first.layout; });
    const std::string fields = one && covered(parts) ? fields_of(first.layout.rule().describe()) : "";
    if (!fields.empty()) return fmt::format("{{{}}}", fields);
    std::string ranks;
    for (int rank = 0; rank < ranks_; ++rank) {
      const TensorLayout* part = part_of(parts, rank);
      const std::string boxes = part ? boxes_text(part->layout.boxes_of(part->spec.shape, Rank{rank})) : "";
      if (!boxes.empty()) ranks += fmt::format("{}\"{}\": [{}]", ranks.empty() ? "" : ", ", rank, boxes);
    }
    return fmt::format(R"({{"boxes": {{{}}}}})", ranks);
  }

  // `layouts`: rule and layout. Only a source has lost ranks.
  [[nodiscard]] std::string json(std::string_view layouts, bool is_source) const {
    std::vector<std::size_t> lost;
    for (std::size_t rank = 0; rank < section_of_.size(); ++rank) {
      if (section_of_[rank] == none) lost.push_back(rank);
    }
    return fmt::format(R"({{"ranks": {},{} "rules": {{{}
  }}}})",
                       ranks_, is_source && !lost.empty() ? fmt::format(R"( "lost": {},)", list_json(lost)) : "",
                       layouts);
  }

 private:
  static constexpr std::size_t none = ~std::size_t{0};

  // The declaration that counts for a rank; null: the rank does not have the tensor.
  [[nodiscard]] const TensorLayout* part_of(const Parts& parts, int rank) const {
    const std::size_t section = section_of_[static_cast<std::size_t>(rank)];
    if (section == none) return restores_lost_ ? parts.begin()->second : nullptr;
    const auto found = parts.find(section);
    return found == parts.end() ? nullptr : found->second;
  }

  // Whether all ranks that the layout names have the tensor.
  [[nodiscard]] bool covered(const Parts& parts) const {
    const TensorLayout& first = *parts.begin()->second;
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!part_of(parts, rank) && !first.layout.boxes_of(first.spec.shape, Rank{rank}).empty()) return false;
    }
    return true;
  }

  int ranks_;
  bool restores_lost_;
  std::vector<std::size_t> section_of_;  // by rank
  std::map<std::string_view, std::map<std::string_view, Parts>> parts_;
  std::vector<std::string_view> order_;
};

// The rules of both sides: tensors with equal layouts on both share one.
class ExportedRules {
 public:
  const std::string& name_of(const std::string& source, const std::string& target) {
    const auto [found, fresh] = names_.try_emplace({source, target}, fmt::format("r{}", names_.size() + 1));
    if (!fresh) return found->second;
    const char* comma = source_.empty() ? "" : ",";
    source_ += fmt::format("{}\n    \"{}\": {}", comma, found->second, source);
    target_ += fmt::format("{}\n    \"{}\": {}", comma, found->second, target);
    return found->second;
  }
  [[nodiscard]] const std::string& source() const { return source_; }
  [[nodiscard]] const std::string& target() const { return target_; }

 private:
  std::map<std::pair<std::string, std::string>, std::string> names_;
  std::string source_;
  std::string target_;
};

void require_named(const TensorKey& key) {
  if (!key.fqn.empty() && !key.state.empty()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("{}: a case file has no tensors without a name or a state", to_string(key)));
}

// The states of a tensor; a state with a shape or layouts unlike the first one's has a shape and a rule of its own.
std::string tensor_json(std::string_view name, const std::map<std::string_view, Parts>& held,
                        const std::map<std::string_view, Parts>& wanted, const ExportedSide& from,
                        const ExportedSide& to, ExportedRules& rules) {
  std::string states;
  std::string shape;
  std::string rule;
  for (const auto& [state, parts] : wanted) {
    const auto holders = held.find(state);
    if (holders == held.end()) continue;
    const TensorSpec& spec = parts.begin()->second->spec;
    require_named(spec.key);
    const std::string own_shape = list_json(spec.shape);
    const std::string& own_rule = rules.name_of(from.layout_json(holders->second), to.layout_json(parts));
    if (states.empty()) {
      shape = own_shape;
      rule = own_rule;
    }
    states += fmt::format(R"({}{{"name": {}, "dtype": "{}")", states.empty() ? "" : ", ", json_text(state),
                          to_string(spec.dtype));
    if (own_shape != shape) states += fmt::format(R"(, "shape": {})", own_shape);
    if (own_shape != shape || own_rule != rule) states += fmt::format(R"(, "rule": "{}")", own_rule);
    states += "}";
  }
  if (states.empty()) return {};
  return fmt::format(R"({{"fqn": {}, "shape": {}, "rule": "{}", "states": [{}]}})", json_text(name), shape, rule,
                     states);
}

std::string case_of(std::string_view name, const JobLayout& source, const JobLayout& target, bool restores_lost) {
  const NameSearch names(source, target);
  const ExportedSide from(source, names.held(), true);
  const ExportedSide to(target, names.wanted(), restores_lost);
  ExportedRules rules;
  std::string tensors;
  for (const std::string_view wanted : to.names()) {
    const auto held = names.find(wanted, [&](std::string_view one) { return from.has(one); });
    if (!held) continue;
    const std::string tensor = tensor_json(wanted, from.states_of(*held), to.states_of(wanted), from, to, rules);
    if (!tensor.empty()) tensors += fmt::format("{}\n    {}", tensors.empty() ? "" : ",", tensor);
  }
  if (tensors.empty()) throw Error(ErrorCode::invalid_argument, "a case needs a tensor that both sides have");
  return fmt::format(R"({{
  "name": {},
  "tensors": [{}
  ],
  "source": {},
  "target": {}
}}
)",
                     json_text(name), tensors, from.json(rules.source(), true), to.json(rules.target(), false));
}

JobLayout side_of(const Catalog& catalog) {
  JobLayout side{catalog.ranks(), {{manifest_of(catalog), {}}}};
  for (int rank = 0; rank < side.ranks; ++rank) side.sections.front().ranks.push_back(Rank{rank});
  return side;
}

}  // namespace

std::string Catalog::to_case() const {
  const JobLayout side = side_of(*this);
  return case_of("catalog", side, side, true);
}

std::string Inventory::to_case() const {
  return case_of(fmt::format("step {}", step), held, held, true);
}

std::string Inventory::to_case(const JobLayout& target) const {
  static_cast<void>(Planner(held, target));  // checks both
  return case_of(fmt::format("step {}", step), held, target, false);
}

}  // namespace shardwire
