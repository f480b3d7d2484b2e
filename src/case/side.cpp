// SPDX-License-Identifier: Apache-2.0
#include "case/side.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "case/flat_entry.hpp"
#include "case/layout_parser.hpp"
#include "shardwire/error.hpp"
#include "support/list_of.hpp"
#include "support/nearest.hpp"

namespace shardwire {
namespace {

// A run of ranks that hold the same tensors: a pipeline stage, or all ranks.
struct Stage {
  int first = 0;
  int ranks = 0;
  std::vector<std::size_t> tensors;  // indices into the list
};

std::vector<Stage> stages_of(const Node& node, int ranks, const TensorList& list) {
  int count = 1;
  if (const auto pipeline = node.find("pipeline")) {
    if (!list.of_model) pipeline->refuse("is valid only together with a model");
    count = static_cast<int>(pipeline->integer(1, max_ranks));
    if (count > 1 && count > list.layers) {
      pipeline->refuse(fmt::format("{} stages for {} layers; each needs one at least", count, list.layers));
    }
    if (ranks % count != 0) pipeline->refuse(fmt::format("{} ranks do not make {} stages of equal size", ranks, count));
  }
  std::vector<Stage> stages(static_cast<std::size_t>(count));
  std::vector<std::size_t> stage_of_layer;  // the first `layers mod count` stages have one more
  for (int s = 0; s < count; ++s) {
    stages[static_cast<std::size_t>(s)].first = s * (ranks / count);
    stages[static_cast<std::size_t>(s)].ranks = ranks / count;
    const int layers = list.layers / count + (s < list.layers % count ? 1 : 0);
    stage_of_layer.insert(stage_of_layer.end(), static_cast<std::size_t>(layers), static_cast<std::size_t>(s));
  }
  for (std::size_t i = 0; i < list.tensors.size(); ++i) {
    const int layer = list.tensors[i].layer;
    const std::size_t stage = layer < 0              ? 0
                              : layer >= list.layers ? stages.size() - 1
                                                     : stage_of_layer[static_cast<std::size_t>(layer)];
    stages[stage].tensors.push_back(i);
  }
  return stages;
}

// The entries of a side's rules, and the entry that serves each tensor.
class Rules {
 public:
  Rules(const Node& node, const TensorList& list) : list_(list) {
    for (const auto& [name, entry] : node.members()) {
      if (name.empty()) entry.refuse("an empty name");
      refuse_keyword(entry, name);
      const auto known = std::find(std::begin(model_rules), std::end(model_rules), name);
      if (list.of_model && name != "*" && known == std::end(model_rules)) {
        entry.refuse("the model has no tensors of this rule" +
                     support::known_words(name, fmt::format("{}, *", fmt::join(model_rules, ", "))));
      }
      entries_.emplace(name, Entry{parse_entry(entry), entry});
    }
    for (std::size_t i = 0; i < list.tensors.size(); ++i) {
      const CaseTensor& tensor = list.tensors[i];
      auto found = entries_.find(tensor.rule);
      if (found == entries_.end()) found = entries_.find("*");
      if (found == entries_.end()) {
        std::vector<std::string_view> known;
        for (const auto& [name, entry] : entries_) known.push_back(name);
        throw CaseError(fmt::format("{}: no entry of {} serves rule '{}' of tensor {}{}", list.place(tensor),
                                    node.place(), path_step(tensor.rule).substr(1), quoted(tensor.fqn),
                                    support::suggestion(tensor.rule, known)));
      }
      if (tensor.states_alone && std::holds_alternative<FlatEntry>(found->second.rule)) {
        found->second.node.refuse(fmt::format(
            "state {} of tensor {} has a shape or a rule of its own and cannot be in a flat parameter: give its rule "
            "an entry of another kind",
            quoted(list.states_of(tensor).front().name), quoted(tensor.fqn)));
      }
      entry_of_.push_back(&found->second);
      found->second.names.insert(tensor.fqn);
    }
  }

  struct Served {
    Layout layout;
    std::optional<std::uint32_t> flat{};  ///< the flat parameter, for its members
  };
  /// Layouts of a stage's tensors, in order, as if its ranks were all ranks; each checked.
  std::vector<Served> serve(const Stage& stage) {
    std::map<const Entry*, std::vector<const CaseTensor*>> flat;
    for (const std::size_t i : stage.tensors) {
      if (std::holds_alternative<FlatEntry>(entry_of_[i]->rule)) flat[entry_of_[i]].push_back(&list_.tensors[i]);
    }
    std::map<const CaseTensor*, FlatEntry::Member> members;
    for (const auto& [entry, tensors] : flat) {
      const auto layouts = std::get<FlatEntry>(entry->rule).layouts_of(tensors, entry->names);
      for (std::size_t i = 0; i < tensors.size(); ++i) members.emplace(tensors[i], layouts[i]);
    }
    std::vector<Served> served;
    std::map<std::pair<const Entry*, std::uint32_t>, std::uint32_t> flat_parameters;
    for (const std::size_t i : stage.tensors) {
      const CaseTensor& tensor = list_.tensors[i];
      Entry& entry = *entry_of_[i];
      const auto member = members.find(&tensor);
      const Layout& layout = member == members.end() ? std::get<Layout>(entry.rule) : member->second.layout;
      // One-element tensors are sent by value, so their dims do not constrain the layout.
      const bool fresh = member != members.end() || entry.checked.insert({tensor.shape, stage.ranks}).second;
      if (volume_of(tensor.shape) != 1 && fresh) {
        check(layout, tensor, entry.node, stage.ranks);
        warn_of_idle_ranks(entry, layout, tensor.shape, stage.ranks);
      }
      if (member == members.end()) {
        served.push_back({layout});
        continue;
      }
      const auto number = static_cast<std::uint32_t>(flat_parameters.size());
      served.push_back({layout, flat_parameters.try_emplace({&entry, member->second.list}, number).first->second});
    }
    return served;
  }

  /// Adds the entries, and what is most likely not meant. Call it after serve().
  void describe(CaseSide& side) const {
    for (const auto& [name, entry] : entries_) {
      const auto* const layout = std::get_if<Layout>(&entry.rule);
      side.rules.push_back({name, layout != nullptr ? layout->to_string() : std::get<FlatEntry>(entry.rule).to_string(),
                            entry.names.size()});
      if (!entry.warning.empty()) side.warnings.push_back(entry.warning);
      if (entry.names.empty()) side.warnings.push_back(entry.node.place() + ": no tensor has this rule");
    }
  }

 private:
  using Rule = std::variant<Layout, FlatEntry>;
  struct Entry {
    Rule rule;
    Node node;
    bool counted = false;                         // whether its ranks were compared with those of a stage
    std::string warning{};                        // that it leaves some out
    std::set<std::string> names{};                // of the tensors that it serves
    std::set<std::pair<Extents, int>> checked{};  // shapes, ranks
  };

  static void refuse_keyword(const Node& node, const std::string& name) {
    if (is_layout_keyword(name)) node.refuse(fmt::format("'{}' is a layout keyword and cannot name a rule", name));
  }

  static Rule parse_entry(const Node& entry) {
    entry.require_object();
    if (entry.has("flat")) {
      require_one_kind(entry);
      return FlatEntry(entry);
    }
    return parse_layout(entry);
  }

  static void check(const Layout& layout, const CaseTensor& tensor, const Node& node, int ranks) {
    try {
      layout.check(tensor.shape, ranks);
    } catch (const Error& error) {
      node.refuse(fmt::format("{} (tensor {})", error.what(), quoted(tensor.fqn)));
    }
  }

  // An entry that lists ranks or boxes means to leave some out.
  static void warn_of_idle_ranks(Entry& entry, const Layout& layout, const Extents& shape, int ranks) {
    const bool lists = entry.node.has("ranks") || entry.node.has("boxes") || entry.node.has("replicated");
    if (std::exchange(entry.counted, true) || lists) return;
    int too_few = 0;
    int enough = ranks;
    while (enough - too_few > 1) {
      const int middle = too_few + (enough - too_few) / 2;
      (fits(layout, shape, middle) ? enough : too_few) = middle;
    }
    if (enough == ranks) return;
    entry.warning =
        fmt::format("{}: {} is for {} of {}: {} no part of its tensors. Change the number, or list the \"ranks\"",
                    entry.node.place(), layout.to_string(), enough, support::counted(ranks, "rank"),
                    enough + 1 == ranks ? fmt::format("rank {} has", enough)
                                        : fmt::format("ranks {} to {} have", enough, ranks - 1));
  }

  static bool fits(const Layout& layout, const Extents& shape, int ranks) {
    try {
      layout.check(shape, ranks);
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  const TensorList& list_;
  std::map<std::string, Entry> entries_;
  std::vector<Entry*> entry_of_;  // by tensor
};

std::vector<Rank> parse_lost(const Node& node, int ranks) {
  std::vector<Rank> lost;
  for (const Node& one : node.elements()) {
    const Rank rank{static_cast<std::int32_t>(one.integer(0, ranks - 1))};
    if (std::find(lost.begin(), lost.end(), rank) != lost.end()) one.refuse("the rank stands twice");
    lost.push_back(rank);
  }
  std::sort(lost.begin(), lost.end());
  return lost;
}

// Maps layouts to the ranks of a stage; tensors of one rule continue to share a layout.
class Placer {
 public:
  Placer(const Stage& stage, int ranks) : stage_(stage), all_(stage.ranks == ranks) {}
  Layout place(const Layout& layout) {
    if (all_) return layout;
    const auto known = placed_.find(&layout.rule());
    if (known != placed_.end()) return known->second;
    return placed_.emplace(&layout.rule(), Layout::on_ranks(layout, Rank{stage_.first}, stage_.ranks)).first->second;
  }

 private:
  const Stage& stage_;
  bool all_;
  std::map<const LayoutRule*, Layout> placed_;
};

// Numbers the local buffers of a stage. Members of a flat parameter share one for each state, if its type is the same.
class Buffers {
 public:
  std::uint32_t number_of(const std::optional<std::uint32_t>& flat, const CaseState& state) {
    if (!flat) return next_++;
    const auto [known, fresh] = shared_.try_emplace({*flat, state.name, state.dtype}, next_);
    if (fresh) ++next_;
    return known->second;
  }

 private:
  std::uint32_t next_ = 0;
  std::map<std::tuple<std::uint32_t, std::string, DType>, std::uint32_t> shared_;
};

}  // namespace

std::string TensorList::place(const CaseTensor& tensor) const {
  return of_model ? "model" : fmt::format("tensors[{}]", tensor.listed);
}

CaseSide parse_side(const Node& node, const TensorList& list, bool source) {
  if (source) {
    node.require_fields({"ranks", "rules", "pipeline", "lost"});
  } else {
    if (const auto lost = node.find("lost")) lost->refuse("only a source has lost ranks");
    node.require_fields({"ranks", "rules", "pipeline"});
  }
  CaseSide side;
  side.ranks = static_cast<int>(node.at("ranks").integer(1, max_ranks));
  side.layout.ranks = side.ranks;
  const std::vector<Stage> stages = stages_of(node, side.ranks, list);
  Rules rules(node.at("rules"), list);
  for (const Stage& stage : stages) {
    const std::vector<Rules::Served> served = rules.serve(stage);
    Placer placer(stage, side.ranks);
    Buffers buffers;
    Manifest manifest{side.ranks, {}};
    std::vector<std::uint32_t>& numbers = side.buffers.emplace_back();
    for (std::size_t i = 0; i < stage.tensors.size(); ++i) {
      const CaseTensor& tensor = list.tensors[stage.tensors[i]];
      if (volume_of(tensor.shape) == 1) continue;
      const Layout layout = placer.place(served[i].layout);
      for (const CaseState& state : list.states_of(tensor)) {
        manifest.tensors.push_back({{{tensor.fqn, state.name}, state.dtype, tensor.shape}, layout});
        numbers.push_back(buffers.number_of(served[i].flat, state));
      }
    }
    Section section{std::make_shared<const Manifest>(std::move(manifest)), {}};
    for (int rank = 0; rank < stage.ranks; ++rank) section.ranks.push_back(Rank{stage.first + rank});
    side.layout.sections.push_back(std::move(section));
  }
  rules.describe(side);
  if (const auto lost = node.find("lost")) side.lost = parse_lost(*lost, side.ranks);
  if (!side.lost.empty()) side.layout = side.layout.without(side.lost);
  return side;
}

}  // namespace shardwire
