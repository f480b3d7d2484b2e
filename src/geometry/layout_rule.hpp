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

/// Neutral description of a layout rule, sent in manifests and used for equality. A new layout kind needs no schema
/// change: it chooses its own field names.
struct RuleDescription {
  std::string kind;
  std::vector<std::pair<std::string, std::vector<Extent>>> fields;
  std::vector<RuleDescription> inner;

  bool operator==(const RuleDescription&) const = default;
};

/// Called with each box that a search finds and the rank that holds it; false: stop the search.
using OnBox = support::FunctionRef<bool(const PlacedBox&, Rank)>;

/// One layout kind: one file that implements this, and one line in the table of layout_rules.cpp. Implementations are
/// immutable.
class SHARDWIRE_LOCAL LayoutRule {
 public:
  virtual ~LayoutRule() = default;
  [[nodiscard]] virtual std::string_view kind() const = 0;
  /// Throws Error{layout_mismatch} if the rule cannot hold a tensor of this shape on `ranks` ranks.
  virtual void check(const Extents& shape, int ranks) const = 0;
  /// See Layout::boxes_of.
  [[nodiscard]] virtual std::vector<PlacedBox> boxes_of(const Extents& shape, Rank rank) const = 0;
  /// See Layout::local_elements. Default: the sum of the boxes' volumes.
  [[nodiscard]] virtual ElementCount local_elements(const Extents& shape, Rank rank) const;
  /// Whether the boxes of each rank fill one row-major array of its own, so that another layout can split that array.
  [[nodiscard]] virtual bool has_local_array() const { return false; }
  /// An upper bound of any rank's boxes for a tensor of this shape or a smaller one. Accepts every shape, also one that
  /// check() refuses.
  [[nodiscard]] virtual ElementCount max_boxes(const Extents& shape) const;
  /// Approximate number of steps of check(), so that a reader of hostile descriptions can sum them. Accepts every
  /// shape.
  [[nodiscard]] virtual ElementCount check_cost(const Extents& shape) const;
  /// Calls `on_box` for every box, of any rank, that shares an element with `region`, until it returns false. The order
  /// is arbitrary, but ranks that share a box follow one another where that is free. Returns false without any call if
  /// the rule has no better way than to enumerate the boxes of every rank.
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
