// SPDX-License-Identifier: Apache-2.0
#include "geometry/placed_boxes.hpp"

#include <algorithm>

#include "support/checked.hpp"

namespace shardwire {

namespace {

constexpr std::size_t min_indexed = 16;  // a tree does not pay off for so few

}  // namespace

PlacedBoxes::PlacedBoxes(std::vector<PlacedBox> boxes) : boxes_(std::move(boxes)) {
  if (boxes_.size() < min_indexed) return;
  std::vector<Box> plain;
  plain.reserve(boxes_.size());
  for (const PlacedBox& placed : boxes_) plain.push_back(placed.box);
  index_ = OverlapIndex(plain);
}

const PlacedBox* PlacedBoxes::around(const Box& piece) const {
  if (boxes_.empty() || piece.empty() || piece.dims() != boxes_.front().box.dims()) return nullptr;
  if (boxes_.size() < min_indexed) {
    const auto found =
        std::find_if(boxes_.begin(), boxes_.end(), [&](const PlacedBox& one) { return contains(one.box, piece); });
    return found == boxes_.end() ? nullptr : &*found;
  }
  // Boxes are disjoint, so one element of the piece finds the only candidate, however many boxes the piece meets.
  std::vector<std::uint32_t> found;
  index_.find({piece.offset, Extents::filled(piece.dims(), 1)}, found);
  if (found.empty() || !contains(boxes_[found.front()].box, piece)) return nullptr;
  return &boxes_[found.front()];
}

ElementCount PlacedBoxes::elements() const {
  ElementCount elements = 0;
  for (const PlacedBox& placed : boxes_) {
    elements = support::add(elements, placed.box.volume(), "the local size of a tensor");
  }
  return elements;
}

ElementCount PlacedBoxes::local_end() const {
  constexpr const char* what = "the extent of a local buffer";
  ElementCount end = 0;
  for (const PlacedBox& placed : boxes_) {
    if (placed.box.empty()) continue;
    ElementCount last = placed.local_offset;
    for (std::size_t dim = 0; dim < placed.box.dims(); ++dim) {
      last = support::add(last, support::multiply(placed.box.size[dim] - 1, placed.local_strides[dim], what), what);
    }
    end = std::max(end, support::add(last, ElementCount{1}, what));
  }
  return end;
}

}  // namespace shardwire
