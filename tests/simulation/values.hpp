// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "shardwire/layout.hpp"
#include "shardwire/tensor.hpp"
#include "support/splitmix64.hpp"

// The bytes of the simulated tensors: each depends on tensor, step and place in the tensor.
namespace shardwire::simulation {

inline std::byte value_of(std::size_t tensor, std::int64_t step, ElementCount element, ByteCount byte) {
  const std::uint64_t key = (static_cast<std::uint64_t>(tensor) << 56) ^ (static_cast<std::uint64_t>(step) << 40) ^
                            (static_cast<std::uint64_t>(element) << 3) ^ byte;
  return static_cast<std::byte>(support::splitmix64(key) & 0xff);
}

/// Calls visit(global element, byte of the element, place in the buffer) for every byte that the rank holds of a
/// tensor of two dims.
template <typename Visit>
void each_byte(const Layout& layout, const TensorSpec& spec, Rank rank, Visit visit) {
  const auto item = static_cast<ElementCount>(item_size(spec.dtype));
  for (const PlacedBox& one : layout.boxes_of(spec.shape, rank)) {
    for (Extent row = 0; row < one.box.size[0]; ++row) {
      for (Extent column = 0; column < one.box.size[1]; ++column) {
        const ElementCount element = (one.box.offset[0] + row) * spec.shape[1] + one.box.offset[1] + column;
        const ElementCount local = one.local_offset + row * one.local_strides[0] + column * one.local_strides[1];
        for (ElementCount byte = 0; byte < item; ++byte) {
          visit(element, static_cast<ByteCount>(byte), static_cast<std::size_t>(local * item + byte));
        }
      }
    }
  }
}

}  // namespace shardwire::simulation
