// SPDX-License-Identifier: Apache-2.0
#include "geometry/strides.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "geometry/layout_rule.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

constexpr const char* extent_text = "the extent of a strided array";

[[noreturn]] void refuse(ErrorCode code, const std::string& message) {
  throw Error(code, message);
}

void check_form(const Extents& shape, const Extents& strides) {
  if (strides.size() != shape.size()) {
    refuse(ErrorCode::layout_mismatch, fmt::format("{} strides {} for a tensor of {} dims: give one per dim, or none",
                                                   strides.size(), to_string(strides), shape.size()));
  }
  if (std::any_of(strides.begin(), strides.end(), [](Extent stride) { return stride < 0; })) {
    refuse(ErrorCode::invalid_argument, fmt::format("strides {} are negative: copy the tensor into an array of "
                                                    "positive strides first",
                                                    to_string(strides)));
  }
}

// Whether the boxes fill one row-major array of this shape, each at the offset that its strides give.
bool fill_array(const std::vector<PlacedBox>& placed, const Extents& local_shape) {
  const Extents strides = row_major_strides(local_shape);
  return std::all_of(placed.begin(), placed.end(), [&](const PlacedBox& one) {
    if (one.local_strides != strides) return false;
    ElementCount rest = one.local_offset;
    for (std::size_t dim = 0; dim < strides.size(); ++dim) {
      if (rest / strides[dim] + one.box.size[dim] > local_shape[dim]) return false;
      rest %= strides[dim];
    }
    return true;
  });
}

// Shape of the one local array that contains all boxes. Requires: there are boxes.
Extents local_shape_of(const Layout& layout, const PlacedBoxes& placed) {
  const auto no_array = [&](const char* why) {
    refuse(ErrorCode::unsupported,
           fmt::format("strides do not go with {}, {}: give its memory without strides", layout.to_string(), why));
  };
  if (layout.kind() == "boxes" || layout.kind() == "packed") {
    if (placed.all().size() > 1) no_array("whose boxes follow one another");
  } else if (!layout.rule().has_local_array()) {
    no_array("whose ranges follow one another");
  }
  const Extents& strides = placed.all().front().local_strides;
  Extents shape = strides;
  ElementCount volume = placed.elements();
  for (std::size_t dim = 0; dim < strides.size(); ++dim) {
    if (strides[dim] < 1 || volume % strides[dim] != 0) no_array("whose boxes do not lie in one array");
    shape[dim] = volume / strides[dim];
    volume = strides[dim];
  }
  if (volume != 1 || !fill_array(placed.all(), shape)) no_array("whose boxes do not lie in one array");
  return shape;
}

// In ascending order, each stride must exceed the reach of all smaller ones.
void check_disjoint(const Extents& local_shape, const Extents& strides) {
  std::vector<std::size_t> dims;
  for (std::size_t dim = 0; dim < strides.size(); ++dim) {
    if (local_shape[dim] > 1) dims.push_back(dim);
  }
  std::sort(dims.begin(), dims.end(), [&](std::size_t a, std::size_t b) { return strides[a] < strides[b]; });
  Extent reach = 1;
  for (const std::size_t dim : dims) {
    if (strides[dim] < reach) {
      refuse(ErrorCode::invalid_argument,
             fmt::format("strides {} over a local array of {} let elements share an address, or interleave dims: copy "
                         "the tensor into an array of its own first",
                         to_string(strides), to_string(local_shape)));
    }
    reach = support::add(reach, support::multiply(local_shape[dim] - 1, strides[dim], extent_text), extent_text);
  }
}

}  // namespace

Extents check_strides(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides) {
  if (strides.empty()) return {};
  check_form(shape, strides);
  const PlacedBoxes placed(layout.boxes_of(shape, rank));
  if (placed.all().empty()) return {};
  const Extents local_shape = local_shape_of(layout, placed);
  Extents checked = strides;
  const Extents& dense = placed.all().front().local_strides;
  for (std::size_t dim = 0; dim < strides.size(); ++dim) {
    if (local_shape[dim] == 1) checked[dim] = dense[dim];  // an extent of 1 makes the caller's stride irrelevant
  }
  if (checked == dense) return {};
  check_disjoint(local_shape, checked);
  return checked;
}

PlacedBoxes place_boxes(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides) {
  PlacedBoxes dense(layout.boxes_of(shape, rank));
  if (strides.empty()) return dense;
  check_form(shape, strides);
  if (dense.all().empty()) return dense;
  (void)local_shape_of(layout, dense);  // refuses a layout without a single array
  std::vector<PlacedBox> placed = dense.all();
  for (PlacedBox& one : placed) {
    ElementCount rest = one.local_offset;
    one.local_offset = 0;
    for (std::size_t dim = 0; dim < strides.size(); ++dim) {
      const Extent at = rest / one.local_strides[dim];
      rest %= one.local_strides[dim];
      one.local_offset = support::add(one.local_offset, support::multiply(at, strides[dim], extent_text), extent_text);
    }
    one.local_strides = strides;
  }
  PlacedBoxes result(std::move(placed));
  (void)result.local_end();  // refuses sizes that exceed 64 bits
  return result;
}

const PlacedBoxes& BoxCache::of(const Layout& layout, const Extents& shape, Rank rank, const Extents& strides) {
  const std::tuple key(&layout.rule(), shape, rank, strides);
  const auto found = boxes_.find(key);
  if (found != boxes_.end()) return found->second;
  return boxes_.emplace(key, place_boxes(layout, shape, rank, strides)).first->second;
}

}  // namespace shardwire
