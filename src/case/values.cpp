// SPDX-License-Identifier: Apache-2.0
#include "case/values.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <utility>

#include "support/splitmix64.hpp"

namespace shardwire {
namespace {

static_assert(std::endian::native == std::endian::little);  // elements are stored as the low bytes of a number

constexpr std::size_t shown_bytes = 16;  // of a wrong element
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

// Calls `use` with a value of the unsigned type that has the size of the element, or `other` if there is none.
template <typename Use, typename Other>
void with_item(DType dtype, Use use, Other other) {
  switch (item_size(dtype)) {
    case 1: return use(std::uint8_t{});
    case 2: return use(std::uint16_t{});
    case 4: return use(std::uint32_t{});
    case 8: return use(std::uint64_t{});
    default: return other();
  }
}

// Writes the numbers of the generator in this state.
void put_numbers(std::span<std::byte> element, std::uint64_t state, std::uint64_t flip) {
  for (; !element.empty(); state += support::splitmix64_step) {
    const std::uint64_t number = splitmix64(state) ^ flip;
    const std::size_t bytes = std::min(element.size(), sizeof number);
    std::memcpy(element.data(), &number, bytes);
    element = element.subspan(bytes);
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

void ElementValues::write_bytes(const PlacedBox& placed, std::byte* local, std::uint64_t flip) const {
  const auto item = static_cast<std::size_t>(item_size(spec_.dtype));
  for_each_row(spec_.shape, placed, [&](std::uint64_t global, ElementCount first, ElementCount length) {
    std::byte* const out = local + static_cast<std::size_t>(first) * item;
    for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
      put_numbers({out + i * item, item}, seed_ ^ (global + i), flip);
    }
  });
}

void ElementValues::fill(const PlacedBox& placed, std::byte* local) const {
  with_item(
      spec_.dtype, [&](auto zero) { write(placed, local, zero); }, [&] { write_bytes(placed, local, 0); });
}

void ElementValues::fill_complement(const PlacedBox& placed, std::byte* local) const {
  with_item(
      spec_.dtype, [&](auto zero) { write(placed, local, static_cast<decltype(zero)>(~zero)); },
      [&] { write_bytes(placed, local, ~std::uint64_t{0}); });
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

void ElementValues::compare_bytes(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const {
  const auto item = static_cast<std::size_t>(item_size(spec_.dtype));
  Bytes expected(item);
  for_each_row(spec_.shape, placed, [&](std::uint64_t global, ElementCount first, ElementCount length) {
    check.elements += length;
    for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
      const std::byte* const found = local + (static_cast<std::size_t>(first) + i) * item;
      put_numbers(expected, seed_ ^ (global + i), 0);
      if (std::memcmp(found, expected.data(), item) == 0) continue;
      if (!check.first) {
        check.first = ValueMismatch{spec_.key, index_of(global + i, spec_.shape), expected, Bytes(found, found + item)};
      }
      ++check.wrong;
    }
  });
}

void ElementValues::check(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const {
  with_item(
      spec_.dtype, [&](auto zero) { compare<decltype(zero)>(placed, local, check); },
      [&] { compare_bytes(placed, local, check); });
}

std::string to_string(const ValueMismatch& mismatch) {
  const auto hex = [](const Bytes& bytes) {
    std::string text;
    for (const std::byte byte : std::span(bytes).first(std::min(bytes.size(), shown_bytes))) {
      text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    }
    return bytes.size() > shown_bytes ? text + ".." : text;
  };
  return fmt::format("{} {} is {}, must be {}", to_string(mismatch.key), to_string(mismatch.index), hex(mismatch.found),
                     hex(mismatch.expected));
}

}  // namespace shardwire
