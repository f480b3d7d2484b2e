// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Maximum number of dimensions of a tensor. Fixed so that boxes are plain values without heap memory.
inline constexpr std::size_t max_dims = 8;

/// Up to max_dims signed 64-bit numbers: a shape, an offset or strides. Zero dimensions is a scalar.
class Extents {
 public:
  constexpr Extents() = default;
  /// Errors: throws Error{unsupported} beyond max_dims.
  Extents(std::initializer_list<Extent> values);
  explicit Extents(std::span<const Extent> values);
  /// `count` times `value`.
  static Extents filled(std::size_t count, Extent value);

  [[nodiscard]] constexpr std::size_t size() const { return count_; }
  [[nodiscard]] constexpr bool empty() const { return count_ == 0; }
  constexpr Extent& operator[](std::size_t dim) { return values_[dim]; }
  constexpr Extent operator[](std::size_t dim) const { return values_[dim]; }
  [[nodiscard]] constexpr const Extent* begin() const { return values_.data(); }
  [[nodiscard]] constexpr const Extent* end() const { return values_.data() + count_; }
  constexpr Extent* begin() { return values_.data(); }
  constexpr Extent* end() { return values_.data() + count_; }

  // Slots past size() stay zero, so comparing whole arrays is comparing values.
  constexpr bool operator==(const Extents&) const = default;
  constexpr auto operator<=>(const Extents&) const = default;

 private:
  std::array<Extent, max_dims> values_{};
  std::size_t count_ = 0;
};

/// Half-open region [offset, offset + size) in global element coordinates. Volume 0 is legal and moves nothing; a box
/// of zero dimensions has volume 1.
struct Box {
  Extents offset;
  Extents size;

  [[nodiscard]] std::size_t dims() const { return size.size(); }
  [[nodiscard]] Extent lower(std::size_t dim) const { return offset[dim]; }
  [[nodiscard]] Extent upper(std::size_t dim) const { return offset[dim] + size[dim]; }
  [[nodiscard]] bool empty() const;
  /// Errors: throws Error{invalid_argument} when the product leaves 64 bits.
  [[nodiscard]] ElementCount volume() const;

  bool operator==(const Box&) const = default;
  auto operator<=>(const Box&) const = default;

  /// The whole of a tensor.
  static Box whole(const Extents& shape) { return {Extents::filled(shape.size(), 0), shape}; }
};

/// Product of all extents; 1 for a scalar. Errors: throws Error{invalid_argument} on overflow.
ElementCount volume_of(const Extents& shape);
/// Row-major strides, in elements, of a dense array of this shape.
Extents row_major_strides(const Extents& shape);

/// Common region of two boxes of the same number of dimensions; empty if they share no element.
std::optional<Box> intersect(const Box& a, const Box& b);
bool contains(const Box& outer, const Box& inner);

/// "[0:4, 8:16]"
std::string to_string(const Box& box);
/// "(4096, 14336)"
std::string to_string(const Extents& extents);

}  // namespace shardwire
SHARDWIRE_API_END
