// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "memory/device_copy/host_device.hpp"
#include "memory/device_copy/table.hpp"
#include "shardwire/box.hpp"
#include "support/splitmix64.hpp"

// Generated values of whole boxes, for programs that try restores: a device fills its memory with them and counts wrong
// ones by the same code as the host.
namespace shardwire::memory {

/// Elements of one box. Each is the first bytes of the numbers that splitmix64 generates from the state seed ^ index,
/// with the index in the whole tensor; of every number counts (number & keep) ^ flip.
struct ValueBox {
  struct Dim {
    std::uint64_t count = 1;
    std::uint64_t index_stride = 0;
    std::uint64_t byte_stride = 0;
  };
  std::byte* first = nullptr;  ///< first element; aligned for it if it has 2, 4 or 8 bytes
  std::uint64_t index = 0;     ///< of the first element
  std::uint64_t elements = 0;
  std::uint64_t seed = 0;
  std::uint64_t keep = ~std::uint64_t{0};
  std::uint64_t flip = 0;
  std::uint32_t item_bytes = 1;
  std::uint32_t dims = 0;
  Dim dim[max_dims]{};
};

/// Boxes, divided into chunks of equally many elements for blocks of threads.
/// Ownership: borrows the bytes of a ValueTable, or a copy of them.
class ValueView {
 public:
  static constexpr std::uint64_t chunk_elements = 8192;

  ValueView() = default;
  ValueView(std::uint64_t boxes, std::uint64_t chunks, const std::byte* block)
      : boxes_(boxes), chunks_(chunks), block_(block) {}

  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t chunks() const { return chunks_; }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t boxes() const { return boxes_; }
  /// Number of chunks before each box, and in total.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const std::uint64_t* first_chunks() const {
    return reinterpret_cast<const std::uint64_t*>(block_);
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const ValueBox& box(std::uint64_t number) const {
    return reinterpret_cast<const ValueBox*>(block_ + (boxes_ + 1) * sizeof(std::uint64_t))[number];
  }

 private:
  std::uint64_t boxes_ = 0;
  std::uint64_t chunks_ = 0;
  const std::byte* block_ = nullptr;
};

namespace detail {

struct PlacedValue {
  std::byte* place = nullptr;
  std::uint64_t state = 0;   // of the generator
  std::uint64_t number = 0;  // its next number
};

SHARDWIRE_HOST_DEVICE inline std::uint64_t number_at(const ValueBox& box, std::uint64_t state) {
  return (support::splitmix64(state) & box.keep) ^ box.flip;
}

// Divides for each element: its speed does not matter.
SHARDWIRE_HOST_DEVICE inline PlacedValue placed_value(const ValueBox& box, std::uint64_t element) {
  std::uint64_t index = box.index;
  std::byte* place = box.first;
  SHARDWIRE_NO_UNROLL
  for (unsigned dim = box.dims; dim-- > 0;) {
    const ValueBox::Dim& along = box.dim[dim];
    const std::uint64_t outer = element / along.count;
    const std::uint64_t at = element - outer * along.count;
    index += at * along.index_stride;
    place += at * along.byte_stride;
    element = outer;
  }
  return {place, box.seed ^ index, number_at(box, box.seed ^ index)};
}

struct FillItem {
  template <typename Item>
  static SHARDWIRE_HOST_DEVICE std::uint64_t visit(const PlacedValue& value) {
    store(value.place, static_cast<Item>(value.number));
    return 0;
  }
};
struct CompareItem {
  template <typename Item>
  static SHARDWIRE_HOST_DEVICE std::uint64_t visit(const PlacedValue& value) {
    return load<Item>(value.place) == static_cast<Item>(value.number) ? 0 : 1;
  }
};

// An element of any size, byte by byte. Returns 1 if a byte is wrong.
template <typename Visitor>
SHARDWIRE_HOST_DEVICE inline std::uint64_t visit_bytes(PlacedValue value, const ValueBox& box) {
  std::uint64_t result = 0;
  SHARDWIRE_NO_UNROLL
  for (std::uint32_t i = 0; i < box.item_bytes; ++i) {
    if (i > 0 && i % sizeof value.number == 0) value.number = number_at(box, value.state += support::splitmix64_step);
    result |= Visitor::template visit<std::uint8_t>(value);
    ++value.place;
    value.number >>= 8;
  }
  return result;
}

template <typename Visitor>
SHARDWIRE_HOST_DEVICE inline std::uint64_t visit_value(const PlacedValue& value, const ValueBox& box) {
  switch (box.item_bytes) {
    case 8: return Visitor::template visit<std::uint64_t>(value);
    case 4: return Visitor::template visit<std::uint32_t>(value);
    case 2: return Visitor::template visit<std::uint16_t>(value);
    case 1: return Visitor::template visit<std::uint8_t>(value);
    default: return visit_bytes<Visitor>(value, box);
  }
}

/// Visits the share of thread `thread` of `threads` in a chunk.
template <typename Visitor>
SHARDWIRE_HOST_DEVICE inline std::uint64_t visit_chunk(const ValueView& view, std::uint64_t chunk, std::uint32_t thread,
                                                       std::uint32_t threads) {
  const std::uint64_t number = find_copy(view.first_chunks(), view.boxes(), chunk);
  const ValueBox& box = view.box(number);
  const std::uint64_t begin = (chunk - view.first_chunks()[number]) * ValueView::chunk_elements;
  const std::uint64_t left = box.elements - begin;
  const std::uint64_t end = begin + (left < ValueView::chunk_elements ? left : ValueView::chunk_elements);
  std::uint64_t sum = 0;
  for (std::uint64_t element = begin + thread; element < end; element += threads) {
    sum += visit_value<Visitor>(placed_value(box, element), box);
  }
  return sum;
}

}  // namespace detail

SHARDWIRE_HOST_DEVICE inline void fill_chunk(const ValueView& view, std::uint64_t chunk, std::uint32_t thread,
                                             std::uint32_t threads) {
  detail::visit_chunk<detail::FillItem>(view, chunk, thread, threads);
}
/// Number of wrong elements in the thread's share.
SHARDWIRE_HOST_DEVICE inline std::uint64_t count_wrong_of_chunk(const ValueView& view, std::uint64_t chunk,
                                                                std::uint32_t thread, std::uint32_t threads) {
  return detail::visit_chunk<detail::CompareItem>(view, chunk, thread, threads);
}

/// Boxes as kernels read them, in one block of bytes.
class ValueTable {
 public:
  explicit ValueTable(std::span<const ValueBox> boxes) : boxes_(boxes.size()) {
    std::vector<std::uint64_t> first_chunks{0};
    for (const ValueBox& box : boxes) {
      first_chunks.push_back(first_chunks.back() +
                             (box.elements + ValueView::chunk_elements - 1) / ValueView::chunk_elements);
    }
    chunks_ = first_chunks.back();
    const auto append = [this](std::span<const std::byte> bytes) {
      block_.insert(block_.end(), bytes.begin(), bytes.end());
    };
    append(std::as_bytes(std::span(first_chunks)));
    append(std::as_bytes(boxes));
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return block_; }
  /// The table after its bytes were copied there. Requires: aligned to 8 bytes.
  [[nodiscard]] ValueView view(const std::byte* block) const { return {boxes_, chunks_, block}; }
  [[nodiscard]] ValueView view() const { return view(block_.data()); }

 private:
  std::uint64_t boxes_ = 0;
  std::uint64_t chunks_ = 0;
  std::vector<std::byte> block_;
};

}  // namespace shardwire::memory
