// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/device.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/types.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// A scheduled piece bound to addresses: all that a way needs to know.
struct Transfer {
  std::uint32_t piece = 0;  ///< index into the plan
  std::uint32_t peer = 0;   ///< index into the restore's list of peers
  Way way = Way::local;
  std::uint32_t held_tensor = 0;  ///< in the peer's manifest
  Box box;                        ///< global coordinates
  PlacedBox held;                 ///< box of the source that contains `box`
  PlacedBox wanted;               ///< box of the target that contains `box`
  ByteCount item_bytes = 0;
  const std::byte* source = nullptr;    ///< source's local element 0 as seen from here; null: not mapped
  std::byte* target = nullptr;          ///< target's local element 0
  int source_device = memory::on_host;  ///< of `source`
  bool source_apart = false;            ///< see memory::QueuedCopy
  int target_device = memory::on_host;
  const transport::RemoteRegion* region = nullptr;  ///< where one-sided reads read from; null: there is none
  ByteCount region_offset = 0;                      ///< of the source's local element 0
  /// From `held` to `wanted`, all of `box`; worked out once by choose_ways().
  std::optional<memory::StridedCopy> copy{};
};

/// Whether memory of a device is on one of its sides here.
inline bool is_on_device(const Transfer& transfer) {
  return transfer.source_device != memory::on_host || transfer.target_device != memory::on_host;
}

inline ByteCount bytes_of_box(const Box& box, ByteCount item_bytes) {
  return static_cast<ByteCount>(box.volume()) * item_bytes;
}
/// Payload bytes that one transfer moves.
inline ByteCount bytes_of(const Transfer& transfer) {
  return transfer.copy ? transfer.copy->bytes() : bytes_of_box(transfer.box, transfer.item_bytes);
}

/// Part of a transfer: a box, and what it is a part of, which lives as long as the engine and its completions.
struct TransferPart {
  TransferPart(const Transfer& whole, const Box& part)
      : transfer(&whole), box(part), bytes_(bytes_of_box(part, whole.item_bytes)) {}

  [[nodiscard]] ByteCount bytes() const { return bytes_; }

  const Transfer* transfer;
  Box box;

 private:
  ByteCount bytes_;
};

/// Part of a box that a message is asked for.
struct PackPart {
  std::uint32_t held_tensor = 0;
  Box box;
};

/// Splits `box` into row-major consecutive boxes of at most `limit` elements each, as few as that order allows; they are
/// added to `parts`. Requires: limit > 0.
void split(const Box& box, ElementCount limit, std::vector<Box>& parts);
/// Splits the elements [first, past) of `box`, counted in row-major order, into boxes, in that order; they are added to `parts`.
/// Requires: they are in the box.
void split_range(const Box& box, ElementCount first, ElementCount past, std::vector<Box>& parts);
/// Splits into parts that lie in one piece on both sides, of at most `limit` elements. Requires: limit > 0.
void split_into_runs(const Transfer& transfer, ElementCount limit, std::vector<Box>& parts);

/// Bytes of memory from the first element of `box` to the last.
ByteCount hull_bytes(const Box& box, const PlacedBox& placed, ByteCount item_bytes);
/// Splits `box` into boxes that span at most `limit_bytes` where they lie, or single elements. In the order in which they
/// lie: the parts together span no more than the whole, where strides are nested.
void split_hull(const Box& box, const PlacedBox& placed, ByteCount item_bytes, ByteCount limit_bytes,
                std::vector<Box>& parts);

}  // namespace shardwire::move
