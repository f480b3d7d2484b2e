// SPDX-License-Identifier: Apache-2.0
#include "shardwire/layout.hpp"

#include <fmt/format.h>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {

std::string_view Layout::kind() const {
  return rule_->kind();
}

void Layout::check(const Extents& shape, int ranks) const {
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("dim {} of shape {} is negative", dim, shardwire::to_string(shape)));
    }
  }
  volume_of(shape);  // refuses shapes that exceed 64 bits before a rule multiplies
  rule_->check(shape, ranks);
}

std::vector<PlacedBox> Layout::boxes_of(const Extents& shape, Rank rank) const {
  return rule_->boxes_of(shape, rank);
}

ElementCount Layout::local_elements(const Extents& shape, Rank rank) const {
  return rule_->local_elements(shape, rank);
}

ElementCount LayoutRule::local_elements(const Extents& shape, Rank rank) const {
  ElementCount elements = 0;
  for (const PlacedBox& placed : boxes_of(shape, rank)) {
    elements = support::add(elements, placed.box.volume(), "the local size of a tensor");
  }
  return elements;
}

ElementCount LayoutRule::max_boxes(const Extents&) const {
  return 1;
}

ElementCount LayoutRule::check_cost(const Extents&) const {
  return 1;
}

std::string Layout::to_string() const {
  return rule_->to_string();
}

bool Layout::operator==(const Layout& other) const {
  return rule_ == other.rule_ || rule_->describe() == other.rule_->describe();
}

}  // namespace shardwire
