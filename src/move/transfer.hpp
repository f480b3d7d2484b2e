// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "memory/strided_copy.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"

namespace shardwire::move {

/// How a transfer is done. The names of the report.
enum class WayKind : std::uint8_t { local, mapped, packed };

/// A scheduled piece bound to addresses: all that a way needs to know.
struct Transfer {
  std::uint32_t piece = 0;  ///< index into the plan
  std::uint32_t peer = 0;   ///< index into the restore's list of peers
  WayKind way = WayKind::local;
  std::uint32_t held_tensor = 0;  ///< in the peer's manifest
  Box box;                        ///< global coordinates
  PlacedBox held;                 ///< box of the source that contains `box`
  PlacedBox wanted;               ///< box of the target that contains `box`
  ByteCount item_bytes = 0;
  const std::byte* source = nullptr;  ///< source's local element 0 as seen from here; null for packed
  std::byte* target = nullptr;        ///< target's local element 0
};

/// Payload bytes that one transfer moves.
inline ByteCount bytes_of(const Transfer& transfer) {
  return static_cast<ByteCount>(transfer.box.volume()) * transfer.item_bytes;
}

/// Part of a box that a packed request asks for.
struct PackPart {
  std::uint32_t held_tensor = 0;
  Box box;
};

/// Cuts `box` into row-major consecutive boxes of at most `limit` elements each, as few as that order allows. Requires:
/// limit > 0.
std::vector<Box> cut(const Box& box, ElementCount limit);

}  // namespace shardwire::move
