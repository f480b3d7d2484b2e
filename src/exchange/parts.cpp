// SPDX-License-Identifier: Apache-2.0
#include "exchange/parts.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "geometry/intervals.hpp"
#include "memory/strided_copy.hpp"

namespace shardwire {

namespace {

// Slice `part.index` of a tensor: along dim 0 if it is long enough, since most layouts split that dim.
Box slice_of(const Extents& shape, const wire::ExchangePart& part) {
  Box slice = Box::whole(shape);
  if (shape.empty()) return slice;
  const auto largest = static_cast<std::size_t>(std::max_element(shape.begin(), shape.end()) - shape.begin());
  const std::size_t dim = shape[0] >= static_cast<Extent>(part.count) ? 0 : largest;
  const Interval interval = chunk_of(shape[dim], part.count, part.index);
  slice.offset[dim] = interval.lower;
  slice.size[dim] = interval.size();
  return slice;
}

std::vector<PlacedBox> one_behind_the_other(const PlacedBoxes& places) {
  std::vector<PlacedBox> packed;
  ElementCount offset = 0;
  for (const PlacedBox& place : places.all()) {
    packed.push_back({place.box, offset, row_major_strides(place.box.size)});
    offset += place.box.volume();
  }
  return packed;
}

}  // namespace

std::string describe_part(const wire::ExchangePart& part) {
  if (part.count == 1) return to_string(part.key);
  return fmt::format("{} (slice {} of {})", to_string(part.key), part.index, part.count);
}

PlacedBoxes boxes_in(const wire::ExchangePart& part, const Extents& shape, const PlacedBoxes& boxes) {
  if (part.count == 1) return boxes;
  const Box slice = slice_of(shape, part);
  std::vector<PlacedBox> inside;
  for (const PlacedBox& placed : boxes.all()) {
    const auto common = intersect(placed.box, slice);
    if (!common) continue;
    PlacedBox clipped{*common, placed.local_offset, placed.local_strides};
    for (std::size_t dim = 0; dim < common->dims(); ++dim) {
      clipped.local_offset += (common->offset[dim] - placed.box.offset[dim]) * placed.local_strides[dim];
    }
    inside.push_back(clipped);
  }
  return PlacedBoxes(std::move(inside));
}

ByteCount StagedPart::size_bytes() const {
  return static_cast<ByteCount>(places.elements()) * item_size(entry->spec.dtype);
}

void StagedPart::write_out(int device, const CopyAndWait& copy_and_wait) const {
  const std::vector<PlacedBox> packed = one_behind_the_other(places);
  const auto& belong = places.all();
  auto* const to = static_cast<std::byte*>(entry->view.data);
  std::vector<memory::QueuedCopy> on_device;
  for (std::size_t i = 0; i < belong.size(); ++i) {
    const memory::StridedCopy copy(belong[i].box, packed[i], belong[i], item_size(entry->spec.dtype));
    if (device == memory::on_host) {
      copy.run_all(bytes.get(), to);
    } else {
      on_device.push_back({copy, bytes.get(), to, memory::on_host, device});
    }
  }
  if (!on_device.empty()) copy_and_wait(std::move(on_device));
}

}  // namespace shardwire
