// SPDX-License-Identifier: Apache-2.0
#include "case/values.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <utility>

#include "support/splitmix64.hpp"

namespace shardwire {
namespace {

static_assert(std::endian::native == std::endian::little);  // elements are stored as the low bytes of a number

constexpr std::uint64_t generation_step = 0xD1B54A32D192ED03U;

using support::splitmix64;

// Calls row(global index, local element, length) for ranges that are contiguous in the tensor and in the local buffer.
template <typename Row>
void for_each_row(const Extents& shape, const PlacedBox& placed, Row row) {
  const Box& box = placed.box;
  if (box.empty()) return;
  const Extents strides = row_major_strides(shape);
  std::size_t outer = box.dims();
  ElementCount length = 1;
  while (outer > 0) {
    const std::size_t dim = outer - 1;
    if (placed.local_strides[dim] != length || strides[dim] != length) break;
    length *= box.size[dim];
    --outer;
    if (box.size[dim] != shape[dim]) break;
  }
  std::array<Extent, max_dims> at{};
  ElementCount global = 0;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) global += box.offset[dim] * strides[dim];
  ElementCount local = placed.local_offset;
  while (true) {
    row(static_cast<std::uint64_t>(global), local, length);
    std::size_t dim = outer;
    while (dim > 0) {
      --dim;
      global += strides[dim];
      local += placed.local_strides[dim];
      if (++at[dim] < box.size[dim]) break;
      global -= strides[dim] * box.size[dim];
      local -= placed.local_strides[dim] * box.size[dim];
      at[dim] = 0;
      if (dim == 0) return;
    }
    if (outer == 0) return;
  }
}

template <typename Item>
Bytes bytes_of(Item item) {
  Bytes bytes(sizeof item);
  std::memcpy(bytes.data(), &item, sizeof item);
  return bytes;
}

Extents index_of(std::uint64_t index, const Extents& shape) {
  Extents at = shape;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    at[dim] = static_cast<Extent>(index % static_cast<std::uint64_t>(shape[dim]));
    index /= static_cast<std::uint64_t>(shape[dim]);
  }
  return at;
}

// Calls `use` with a value of the unsigned type that has the size of the element.
template <typename Use>
void with_item(DType dtype, Use use) {
  switch (item_size(dtype)) {
    case 1: return use(std::uint8_t{});
    case 2: return use(std::uint16_t{});
    case 4: return use(std::uint32_t{});
    default: return use(std::uint64_t{});
  }
}

}  // namespace

ElementValues::ElementValues(TensorSpec spec, std::uint64_t generation) : spec_(std::move(spec)) {
  std::string key = spec_.key.fqn;
  key += '\0';
  key += spec_.key.state;
  seed_ = XXH64(key.data(), key.size(), 0) ^ (generation * generation_step);
}

std::uint64_t ElementValues::number_at(std::uint64_t index) const {
  return splitmix64(seed_ ^ index);
}

// Buffers of a catalog are aligned to their element, as buffers of that type would be.
template <typename Item>
void ElementValues::write(const PlacedBox& placed, std::byte* local, Item flip) const {
  Item* const items = reinterpret_cast<Item*>(local);
  const std::uint64_t seed = seed_;
  for_each_row(spec_.shape, placed, [=](std::uint64_t global, ElementCount first, ElementCount length) {
    Item* const out = items + first;
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(length); ++i) {
      out[i] = static_cast<Item>(static_cast<Item>(splitmix64(seed ^ (global + i))) ^ flip);
    }
  });
}

void ElementValues::fill(const PlacedBox& placed, std::byte* local) const {
  with_item(spec_.dtype, [&](auto zero) { write(placed, local, zero); });
}

void ElementValues::fill_complement(const PlacedBox& placed, std::byte* local) const {
  with_item(spec_.dtype, [&](auto zero) { write(placed, local, static_cast<decltype(zero)>(~zero)); });
}

template <typename Item>
void ElementValues::compare(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const {
  const Item* const items = reinterpret_cast<const Item*>(local);
  const std::uint64_t seed = seed_;
  for_each_row(spec_.shape, placed, [&](std::uint64_t global, ElementCount first, ElementCount length) {
    const Item* const in = items + first;
    const auto count = static_cast<std::uint64_t>(length);
    check.elements += length;
    Item difference = 0;  // one branch per row: nearly all rows are right
    for (std::uint64_t i = 0; i < count; ++i) {
      difference = static_cast<Item>(difference | (static_cast<Item>(splitmix64(seed ^ (global + i))) ^ in[i]));
    }
    if (difference == 0) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      const Item expected = static_cast<Item>(splitmix64(seed ^ (global + i)));
      if (expected == in[i]) continue;
      if (!check.first) {
        check.first = ValueMismatch{spec_.key, index_of(global + i, spec_.shape), bytes_of(expected), bytes_of(in[i])};
      }
      ++check.wrong;
    }
  });
}

void ElementValues::check(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const {
  with_item(spec_.dtype, [&](auto zero) { compare<decltype(zero)>(placed, local, check); });
}

std::string to_string(const ValueMismatch& mismatch) {
  const auto hex = [](const Bytes& bytes) {
    std::string text;
    for (const std::byte byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
  };
  return fmt::format("{} {} is {}, must be {}", to_string(mismatch.key), to_string(mismatch.index), hex(mismatch.found),
                     hex(mismatch.expected));
}

}  // namespace shardwire
