// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "catalog/tensor_places.hpp"
#include "geometry/placed_boxes.hpp"
#include "shardwire/catalog.hpp"
#include "wire/exchange_note.hpp"

// Parts of tensors that an exchange reads and writes one after the other: whole tensors, or slices of them.
namespace shardwire {

/// For people.
std::string describe_part(const wire::ExchangePart& part);
/// The regions of `boxes`, boxes of a tensor of this shape, that lie in the part; their places stay unchanged.
PlacedBoxes boxes_in(const wire::ExchangePart& part, const Extents& shape, const PlacedBoxes& boxes);

/// A part of a wanted tensor in staging: its boxes lie back to back.
struct StagedPart {
  const Catalog::Entry* entry = nullptr;
  PlacedBoxes places;  ///< destinations of the boxes
  std::unique_ptr<std::byte[]> bytes{};

  [[nodiscard]] ByteCount size_bytes() const;
  /// Copies the part to its destination, on `device` or in host memory.
  void write_out(int device, const CopyAndWait& copy_and_wait) const;
};

}  // namespace shardwire
