// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "move/transfer.hpp"

namespace shardwire::move {

namespace {

// `inner` is the volume of one index of `dim`.
void cut_from(const Box& box, std::size_t dim, ElementCount volume, ElementCount limit, std::vector<Box>& parts) {
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
    cut_from(part, dim + 1, inner * part.size[dim], limit, parts);
  }
}

}  // namespace

std::vector<Box> cut(const Box& box, ElementCount limit) {
  std::vector<Box> parts;
  if (!box.empty()) cut_from(box, 0, box.volume(), limit, parts);
  return parts;
}

}  // namespace shardwire::move
