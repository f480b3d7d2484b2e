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

/// A scheduled piece bound to addresses: everything that a method needs.
struct Transfer {
  std::uint32_t piece = 0;  ///< index into the plan
  std::uint32_t peer = 0;   ///< index into the restore's list of peers
  Method method = Method::local;
  std::uint32_t held_tensor = 0;  ///< in the peer's manifest
  Box box;                        ///< global coordinates
  PlacedBox held;                 ///< box of the source that contains `box`
  PlacedBox wanted;               ///< box of the target that contains `box`
  ByteCount item_bytes = 0;
  const std::byte* source = nullptr;    ///< source's local element 0 as addressable here; null: not mapped
  std::byte* target = nullptr;          ///< target's local element 0
  int source_device = memory::on_host;  ///< of `source`
  bool source_isolated = false;         ///< see memory::QueuedCopy
  int target_device = memory::on_host;
  const transport::RemoteRegion* region = nullptr;  ///< region for one-sided reads; null: none
  ByteCount region_offset = 0;                      ///< of the source's local element 0
  /// From `held` to `wanted`, all of `box`; computed once by choose_methods().
  std::optional<memory::StridedCopy> copy{};
};

/// Whether its memory on this side is device memory, at source or target.
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

/// Part of a transfer: a box, and its transfer, which lives as long as the engine and its completions.
struct TransferPart {
  TransferPart(const Transfer& whole, const Box& part)
      : transfer(&whole), box(part), bytes_(bytes_of_box(part, whole.item_bytes)) {}

  [[nodiscard]] ByteCount bytes() const { return bytes_; }

  const Transfer* transfer;
  Box box;

 private:
  ByteCount bytes_;
};

/// The part of a box that a message request names.
struct PackPart {
  std::uint32_t held_tensor = 0;
  Box box;
};

/// Splits `box` into row-major consecutive boxes of at most `limit` elements each, as few as that order allows, and
/// appends them to `parts`. Requires: limit > 0.
void split(const Box& box, ElementCount limit, std::vector<Box>& parts);
/// Splits the elements [first, end) of `box`, counted in row-major order, into boxes in that order, and appends them to
/// `parts`. Requires: they are in the box.
void split_range(const Box& box, ElementCount first, ElementCount end, std::vector<Box>& parts);
/// Splits into parts that are contiguous on both sides, of at most `limit` elements. Requires: limit > 0.
void split_into_runs(const Transfer& transfer, ElementCount limit, std::vector<Box>& parts);

/// Bytes of memory from the first element of `box` to the last.
ByteCount hull_bytes(const Box& box, const PlacedBox& placed, ByteCount item_bytes);
/// Splits `box` into boxes that span at most `limit_bytes` in memory, or single elements, in memory order: the parts
/// together span no more than the whole if strides are nested.
void split_hull(const Box& box, const PlacedBox& placed, ByteCount item_bytes, ByteCount limit_bytes,
                std::vector<Box>& parts);

}  // namespace shardwire::move
