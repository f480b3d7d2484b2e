// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <numeric>
#include <span>

#include "move/transfer.hpp"

namespace shardwire::move {

namespace {

// `inner` is the volume of one index of `dim`.
void split_from(const Box& box, std::size_t dim, ElementCount volume, ElementCount limit, std::vector<Box>& parts) {
  if (volume <= limit) {
    parts.push_back(box);
    return;
  }
  const ElementCount inner = volume / box.size[dim];
  const Extent step = std::max<Extent>(1, limit / inner);
  for (Extent index = 0; index < box.size[dim]; index += step) {
    Box part = box;
    part.offset[dim] = box.offset[dim] + index;
    part.size[dim] = std::min(step, box.size[dim] - index);
    split_from(part, dim + 1, inner * part.size[dim], limit, parts);
  }
}

// `volume` is that of `box`, which has one index in each dim before `dim`.
void split_range_from(const Box& box, std::size_t dim, ElementCount volume, ElementCount first, ElementCount upper,
                      std::vector<Box>& parts) {
  if (first == upper) return;
  if (upper - first == volume) {
    parts.push_back(box);
    return;
  }
  const ElementCount inner = volume / box.size[dim];
  const auto slab = [&](Extent from, Extent to) {
    Box some = box;
    some.offset[dim] = box.offset[dim] + from;
    some.size[dim] = to - from;
    return some;
  };
  const ElementCount head = first / inner;
  if (upper <= (head + 1) * inner) {
    return split_range_from(slab(head, head + 1), dim + 1, inner, first - head * inner, upper - head * inner, parts);
  }
  const ElementCount begin = (first + inner - 1) / inner;  // whole indices from here
  const ElementCount end = upper / inner;
  if (begin > head) split_range_from(slab(head, begin), dim + 1, inner, first - head * inner, inner, parts);
  if (end > begin) parts.push_back(slab(begin, end));
  if (upper > end * inner) split_range_from(slab(end, end + 1), dim + 1, inner, 0, upper - end * inner, parts);
}

// Splits along the first of `dims`, the dims that may still be split.
void split_hull_from(const Box& box, std::span<const std::size_t> dims, const PlacedBox& placed, ByteCount item_bytes,
                     ByteCount limit, std::vector<Box>& parts) {
  const ByteCount hull = hull_bytes(box, placed, item_bytes);
  if (hull <= limit || dims.empty()) {
    parts.push_back(box);
    return;
  }
  const std::size_t dim = dims.front();
  // Each index of this dim adds one stride to the hull of a single index.
  Box single = box;
  single.size[dim] = 1;
  const ByteCount least = hull_bytes(single, placed, item_bytes);
  const ByteCount stride = static_cast<ByteCount>(placed.local_strides[dim]) * item_bytes;
  Extent step = 1;
  if (least <= limit && stride > 0) {
    step =
        static_cast<Extent>(std::min<ByteCount>(1 + (limit - least) / stride, static_cast<ByteCount>(box.size[dim])));
  }
  for (Extent index = 0; index < box.size[dim]; index += step) {
    Box part = box;
    part.offset[dim] = box.offset[dim] + index;
    part.size[dim] = std::min(step, box.size[dim] - index);
    split_hull_from(part, dims.subspan(1), placed, item_bytes, limit, parts);
  }
}

}  // namespace

void split(const Box& box, ElementCount limit, std::vector<Box>& parts) {
  if (!box.empty()) split_from(box, 0, box.volume(), limit, parts);
}

void split_range(const Box& box, ElementCount first, ElementCount upper, std::vector<Box>& parts) {
  if (!box.empty()) split_range_from(box, 0, box.volume(), first, upper, parts);
}

void split_into_runs(const Transfer& transfer, ElementCount limit, std::vector<Box>& parts) {
  const memory::StridedCopy copy(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
  const auto run = static_cast<ElementCount>(copy.run_bytes() / transfer.item_bytes);
  split(transfer.box, std::min(run, limit), parts);
}

ByteCount hull_bytes(const Box& box, const PlacedBox& placed, ByteCount item_bytes) {
  if (box.empty()) return 0;
  ByteCount last = 0;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    last += static_cast<ByteCount>(box.size[dim] - 1) * static_cast<ByteCount>(placed.local_strides[dim]);
  }
  return (last + 1) * item_bytes;
}

void split_hull(const Box& box, const PlacedBox& placed, ByteCount item_bytes, ByteCount limit_bytes,
                std::vector<Box>& parts) {
  if (box.empty()) return;
  // Widest stride first: otherwise parts would interleave and read each other's bytes as gaps.
  std::array<std::size_t, max_dims> order{};
  const std::span dims = std::span(order).first(box.dims());
  std::iota(dims.begin(), dims.end(), std::size_t{0});
  std::stable_sort(dims.begin(), dims.end(),
                   [&](std::size_t a, std::size_t b) { return placed.local_strides[a] > placed.local_strides[b]; });
  split_hull_from(box, dims, placed, item_bytes, limit_bytes, parts);
}

}  // namespace shardwire::move
