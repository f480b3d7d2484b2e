// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwire/layout.hpp"
#include "support/function_ref.hpp"

namespace shardwire {

/// Neutral self-description of a layout rule: what travels in a manifest and what equality compares. A new layout kind
/// needs no schema change: it picks its own field names.
struct RuleDescription {
  std::string kind;
  std::vector<std::pair<std::string, std::vector<Extent>>> fields;
  std::vector<RuleDescription> inner;

  bool operator==(const RuleDescription&) const = default;
};

/// Takes a box that a search has found and the rank that holds it; false: that is enough.
using OnBox = support::FunctionRef<bool(const PlacedBox&, Rank)>;

/// One layout kind: one file that implements this, and one line in the table of layout_rules.cpp.
/// Implementations are immutable.
class SHARDWIRE_LOCAL LayoutRule {
 public:
  virtual ~LayoutRule() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;
  /// Throws Error{layout_mismatch} when the rule cannot hold a tensor of this shape on `ranks` ranks.
  virtual void check(const Extents& shape, int ranks) const = 0;
  /// See Layout::boxes_of.
  [[nodiscard]] virtual std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const = 0;
  /// See Layout::local_elements. Unless overridden: the sum of the boxes' volumes.
  [[nodiscard]] virtual ElementCount local_elements(const Extents& shape, Rank rank) const;
  /// Whether the boxes of each rank fill one row-major array of its own, so that another layout can cut that array.
  [[nodiscard]] virtual bool has_local_array() const { return false; }
  /// No rank has more boxes of a tensor of this shape, or of a smaller one. For any shape, also one that does not fit.
  [[nodiscard]] virtual ElementCount max_boxes(const Extents& shape) const;
  /// About how many steps check() takes, so that a reader of hostile descriptions can add up. For any shape.
  [[nodiscard]] virtual ElementCount check_cost(const Extents& shape) const;
  /// Calls `on_box` for every box, of any rank, that shares an element with `region`, until it returns false; in any order,
  /// but all ranks that have a box alike one after another where that costs nothing. Returns false, and calls nothing,
  /// when the rule knows no better way than to ask for the boxes of every rank.
  /// Requires: `region` is not empty and lies inside `shape`. Cost: about the number of boxes found.
  virtual bool find(const Extents& shape, const Box& region, OnBox on_box) const {
    static_cast<void>(shape), static_cast<void>(region), static_cast<void>(on_box);
    return false;
  }
  [[nodiscard]] virtual RuleDescription describe() const = 0;
  [[nodiscard]] virtual std::string to_string() const = 0;
};

/// Rebuilds a layout from a description that may come from a hostile peer.
/// Errors: throws Error{invalid_argument} for an unknown kind or field, or for parameters out of bounds.
Layout layout_from(const RuleDescription& description);

}  // namespace shardwire
