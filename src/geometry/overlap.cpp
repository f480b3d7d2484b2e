// SPDX-License-Identifier: Apache-2.0
#include "geometry/overlap.hpp"

#include <algorithm>
#include <array>

namespace shardwire {
namespace {

constexpr std::uint32_t leaf_size = 4;

bool meet(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.dims(); ++dim) {
    if (a.lower(dim) >= b.upper(dim) || b.lower(dim) >= a.upper(dim)) return false;
  }
  return true;
}

void widen(Box& bounds, const Box& box) {
  for (std::size_t dim = 0; dim < bounds.dims(); ++dim) {
    const Extent upper = std::max(bounds.upper(dim), box.upper(dim));
    bounds.offset[dim] = std::min(bounds.lower(dim), box.lower(dim));
    bounds.size[dim] = upper - bounds.offset[dim];
  }
}

}  // namespace

OverlapIndex::OverlapIndex(std::span<const Box> boxes) {
  entries_.reserve(boxes.size());
  for (std::uint32_t i = 0; i < boxes.size(); ++i) {
    if (!boxes[i].empty()) entries_.push_back(i);
  }
  if (entries_.empty()) return;
  nodes_.reserve(entries_.size());
  build(boxes, 0, static_cast<std::uint32_t>(entries_.size()));
  boxes_.reserve(entries_.size());
  for (const std::uint32_t entry : entries_) boxes_.push_back(boxes[entry]);
}

// Halves the boxes at the median of the dim in which their corners differ most, counted in boxes rather than elements:
// a dim in which all of them start at the same coordinate never separates any.
std::uint32_t OverlapIndex::build(std::span<const Box> boxes, std::uint32_t first, std::uint32_t last) {
  const auto id = static_cast<std::uint32_t>(nodes_.size());
  Box bounds = boxes[entries_[first]];
  for (std::uint32_t i = first + 1; i < last; ++i) widen(bounds, boxes[entries_[i]]);
  nodes_.push_back({bounds, first, last - first, 0});
  if (last - first <= leaf_size) return id;

  std::size_t split = 0;
  double widest = -1;
  for (std::size_t dim = 0; dim < bounds.dims(); ++dim) {
    Extent least = boxes[entries_[first]].lower(dim);
    Extent most = least;
    double sizes = 0;
    for (std::uint32_t i = first; i < last; ++i) {
      const Box& box = boxes[entries_[i]];
      least = std::min(least, box.lower(dim));
      most = std::max(most, box.lower(dim));
      sizes += static_cast<double>(box.size[dim]);
    }
    const double spread = static_cast<double>(most - least) / sizes;
    if (spread > widest) {
      widest = spread;
      split = dim;
    }
  }
  if (bounds.dims() > 0) {
    const auto middle = entries_.begin() + (first + last) / 2;
    std::nth_element(entries_.begin() + first, middle, entries_.begin() + last, [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(boxes[a].lower(split), a) < std::pair(boxes[b].lower(split), b);
    });
  }
  const std::uint32_t middle = (first + last) / 2;
  build(boxes, first, middle);
  const std::uint32_t right = build(boxes, middle, last);
  nodes_[id].count = 0;
  nodes_[id].right = right;
  return id;
}

// Calls `on_hit` with the index in boxes_ of each box that meets `box`, until it returns false.
template <typename OnHit>
void OverlapIndex::visit(const Box& box, OnHit on_hit) const {
  std::array<std::uint32_t, 64> open{};  // one per level of a balanced tree over at most 2^32 boxes, and one more
  std::size_t depth = 1;
  while (depth > 0) {
    const std::uint32_t id = open[--depth];
    const Node& node = nodes_[id];
    if (!meet(node.bounds, box)) continue;
    if (node.count == 0) {
      open[depth++] = node.right;
      open[depth++] = id + 1;
      continue;
    }
    for (std::uint32_t i = node.first; i < node.first + node.count; ++i) {
      if (meet(boxes_[i], box) && !on_hit(i)) return;
    }
  }
}

void OverlapIndex::find(const Box& box, std::vector<std::uint32_t>& found) const {
  found.clear();
  if (nodes_.empty() || box.empty()) return;
  visit(box, [&](std::uint32_t i) {
    found.push_back(entries_[i]);
    return true;
  });
  std::sort(found.begin(), found.end());
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> OverlapIndex::find_overlap() const {
  std::optional<std::pair<std::uint32_t, std::uint32_t>> pair;
  for (std::uint32_t i = 0; i < boxes_.size() && !pair; ++i) {
    visit(boxes_[i], [&](std::uint32_t other) {
      if (other != i) pair = std::minmax({entries_[i], entries_[other]});
      return other == i;
    });
  }
  return pair;
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> find_overlap(std::span<const Box> boxes) {
  if (boxes.size() / 2 > leaf_size) return OverlapIndex(boxes).find_overlap();
  for (std::uint32_t i = 0; i < boxes.size(); ++i) {  // a tree does not pay off for so few
    for (std::uint32_t k = i + 1; k < boxes.size(); ++k) {
      if (intersect(boxes[i], boxes[k])) return std::pair(i, k);
    }
  }
  return std::nullopt;
}

bool covers_exactly(const Box& whole, std::vector<Box> parts) {
  std::erase_if(parts, [](const Box& part) { return part.empty(); });
  std::sort(parts.begin(), parts.end());
  parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
  if (whole.empty()) return parts.empty();
  ElementCount left = whole.volume();
  for (const Box& part : parts) {
    if (part.dims() != whole.dims() || !contains(whole, part)) return false;
    const ElementCount volume = part.volume();
    if (volume > left) return false;  // a running subtraction cannot overflow
    left -= volume;
  }
  return left == 0 && !find_overlap(parts);
}

void subtract(const Box& box, const Box& hole, std::vector<Box>& out) {
  Box rest = box;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    if (rest.lower(dim) < hole.lower(dim)) {
      Box below = rest;
      below.size[dim] = hole.lower(dim) - rest.lower(dim);
      out.push_back(below);
    }
    if (hole.upper(dim) < rest.upper(dim)) {
      Box above = rest;
      above.offset[dim] = hole.upper(dim);
      above.size[dim] = rest.upper(dim) - hole.upper(dim);
      out.push_back(above);
    }
    rest.offset[dim] = hole.offset[dim];
    rest.size[dim] = hole.size[dim];
  }
}

}  // namespace shardwire
