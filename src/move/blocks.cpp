// SPDX-License-Identifier: Apache-2.0
#include "move/blocks.hpp"

#include <algorithm>

#include "move/transfer.hpp"

namespace shardwire::move {

Blocks::Blocks(std::span<const PlacedBox> held, ByteCount item_bytes) : held_(held.begin(), held.end()) {
  const auto limit = std::max<ElementCount>(1, static_cast<ElementCount>(max_bytes / item_bytes));
  for (std::size_t i = 0; i < held_.size(); ++i) {
    split(held_[i].box, limit, boxes_);
    of_.resize(boxes_.size(), static_cast<std::uint32_t>(i));
  }
  index_ = OverlapIndex(boxes_);
}

}  // namespace shardwire::move
