// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "plan/key_table.hpp"
#include "plan/layout_table.hpp"
#include "plan/shares.hpp"
#include "plan/source_choice.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// The state of a Planner, shared by the files of this folder.
struct SHARDWIRE_LOCAL Planner::State {
  State(JobLayout from_side, JobLayout to_side, Topology where, Replicas which);

  /// Tensors with the same shape and the same source layouts of the same ranks.
  struct SourceClass {
    std::uint32_t shape = 0;                                       ///< number
    std::vector<std::pair<std::uint32_t, std::uint32_t>> layouts;  ///< section, number of the layout; by section
    auto operator<=>(const SourceClass&) const = default;
  };
  /// Tensors with the same source layouts and the same target layout in one section. Everything is computed once per
  /// class; single tensors matter only for lists of pieces.
  struct Class {
    const SourceClass* held = nullptr;
    std::uint32_t held_class = 0;
    std::uint32_t section = 0;  ///< of the `to` side
    std::uint32_t layout = 0;   ///< number, of the `to` side
    std::vector<TensorId> tensors;
    ByteCount item_bytes = 0;  ///< sum over all its tensors
    std::unique_ptr<ReplicaReaders> readers;
    bool replicated = false;  ///< a share with several holders was seen
  };
  static constexpr std::uint32_t by_value = ~0U;  ///< class of a tensor that is not a piece

  /// First place of the key that the target side calls `key`; none. `near`: as for KeyTable::find.
  [[nodiscard]] std::uint32_t find_held(const TensorKey& key, std::uint32_t near) const;
  /// Class of each tensor of a section of the `to` side, computed on first use.
  const std::vector<std::uint32_t>& classes_of(std::uint32_t section);
  /// Classes of a section, each once, by first tensor. Requires: classes_of(section) was called.
  [[nodiscard]] const std::vector<std::uint32_t>& distinct_classes_of(std::uint32_t section) const {
    return distinct_of_section[section];
  }
  [[nodiscard]] std::vector<PlacedBox> wanted_boxes(std::uint32_t id, Rank target) const {
    return layouts.layout(classes[id].layout).boxes_of(shape_of(id), target);
  }
  /// One search for each section that holds tensors of a class.
  std::vector<LayoutSearch>& sources_of(std::uint32_t id);
  /// The shares that `target` needs of the tensors of a class.
  void share_out(std::uint32_t id, Rank target, Shares& out);
  using OnShares = support::FunctionRef<bool(const Shares&)>;
  /// The same in parts of bounded size, until `on_shares` returns false. If the target's own process (which is not
  /// lost) holds everything wanted, it is the only listed holder: with thousands of replicas, listing them would
  /// dominate the cost.
  void share_out(std::uint32_t id, Rank target, std::span<const Rank> lost, OnShares on_shares);
  /// The `to` section of `target`, its classes computed; none if it wants nothing.
  /// Errors: throws Error{invalid_argument} for a rank that the `to` side does not have.
  std::optional<std::uint32_t> section_of_target(Rank target);
  JobTotals tally(std::span<const Rank> targets, std::span<const Rank> lost, const OnTarget& on_target);
  [[nodiscard]] std::vector<Rank> targets() const;
  /// Sources without the `lost` ones for shares of this class; `lost` ascending.
  SourceChoice choice_for(std::uint32_t id, Rank target, std::span<const Rank> lost);
  [[nodiscard]] const Extents& shape_of(std::uint32_t id) const { return layouts.shape(classes[id].held->shape); }

  /// Holder in the process of a target rank; -1 none.
  [[nodiscard]] std::int32_t colocated(Rank target) const;
  /// The same where it is preferred to other holders; else -1.
  [[nodiscard]] std::int32_t preferred(Rank target) const;
  [[nodiscard]] std::int32_t from_section_of(Rank holder) const {
    return from_section[static_cast<std::size_t>(to_int(from.rank_of(holder)))];
  }
  [[nodiscard]] std::int32_t to_section_of(Rank rank) const {
    return to_section[static_cast<std::size_t>(to_int(rank))];
  }
  /// Index of a tensor of the `to` side in a section of the `from` side. Requires: that section has it.
  [[nodiscard]] TensorId held_tensor(std::uint32_t to_section_number, TensorId tensor,
                                     std::uint32_t from_section_number) const;

  JobLayout from;
  JobLayout to;
  Topology topology;
  Replicas replicas;
  NameSearch names;
  LayoutTable layouts;
  std::vector<std::int32_t> from_section;  ///< by rank, -1 for none
  std::vector<std::int32_t> to_section;
  KeyTable from_keys;
  LayoutSearch::Copies copies;
  std::vector<std::vector<std::uint32_t>> held_of;  ///< by `to` section and tensor: first place in from_keys, or none
  std::map<SourceClass, std::uint32_t> source_classes;
  std::vector<std::vector<LayoutSearch>> searches;  ///< by source class, made on first use
  std::vector<Class> classes;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t>
      class_ids;  ///< source class, section, layout
  std::vector<std::vector<std::uint32_t>> classes_of_section;
  std::vector<std::vector<std::uint32_t>> distinct_of_section;
  ShareSplitter splitter;

 private:
  bool take_own(std::uint32_t id, Rank target, std::span<const Rank> lost);
  void mark_replicated(std::uint32_t id, const Shares& shares);

  Shares scratch_;
};

/// Posting order of items that are read from these sources: round robin over the sources, so that all links work from
/// the start; each target starts at a different source. Local items come last: they need no link, and copying them
/// keeps the processor busy while remote bytes are under way.
std::vector<std::uint32_t> posting_order(std::span<const Rank> of_items, Rank target, std::int32_t own);
/// Gaps of the plan, plus the regions that only the `lost` ranks (ascending) hold.
std::vector<Gap> gaps_without(const Plan& plan, std::span<const Rank> lost);
/// The ranks in ascending order, without duplicates.
std::vector<Rank> sorted(std::span<const Rank> ranks);

}  // namespace shardwire
