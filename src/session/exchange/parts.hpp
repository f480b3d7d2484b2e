// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "geometry/placed_boxes.hpp"
#include "session/tensor_places.hpp"
#include "shardwire/catalog.hpp"
#include "wire/exchange_note.hpp"

// Parts of tensors, which an exchange reads and writes one after the other: whole tensors, or slices of them.
namespace shardwire {

/// For people.
std::string describe_part(const wire::ExchangePart& part);
/// What of `boxes`, which are a tensor's of this shape, lies in the part; each where it was.
PlacedBoxes boxes_in(const wire::ExchangePart& part, const Extents& shape, const PlacedBoxes& boxes);

/// A part of a wanted tensor that waits for its place: the boxes one behind the other.
struct StagedPart {
  const Catalog::Entry* entry = nullptr;
  PlacedBoxes places;  ///< where the boxes belong
  std::unique_ptr<std::byte[]> bytes{};

  [[nodiscard]] ByteCount size_bytes() const;
  /// To its place, on `device` or in memory of the host.
  void write_out(int device, const CopyAndWait& copy_and_wait) const;
};

}  // namespace shardwire
