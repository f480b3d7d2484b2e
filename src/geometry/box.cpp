// SPDX-License-Identifier: Apache-2.0
#include "shardwire/box.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {

Extents::Extents(std::initializer_list<Extent> values)
    : Extents(std::span<const Extent>(values.begin(), values.end())) {
}

Extents::Extents(std::span<const Extent> values) : count_(values.size()) {
  if (values.size() > max_dims) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} dimensions are more than the {} supported", values.size(), max_dims));
  }
  std::copy(values.begin(), values.end(), values_.begin());
}

Extents Extents::filled(std::size_t count, Extent value) {
  std::array<Extent, max_dims> values{};
  values.fill(value);
  if (count > max_dims) {
    throw Error(ErrorCode::unsupported, fmt::format("{} dimensions are more than the {} supported", count, max_dims));
  }
  return Extents(std::span<const Extent>(values.data(), count));
}

bool Box::empty() const {
  return std::any_of(size.begin(), size.end(), [](Extent extent) { return extent <= 0; });
}

ElementCount Box::volume() const {
  return volume_of(size);
}

ElementCount volume_of(const Extents& shape) {
  // A zero extent makes the volume zero, however large the other extents are.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  ElementCount volume = 1;
  for (const Extent extent : shape) volume = support::multiply(volume, extent, "the volume of a box");
  return volume;
}

Extents row_major_strides(const Extents& shape) {
  Extents strides = Extents::filled(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;) {
    strides[dim - 1] = support::multiply(strides[dim], shape[dim], "the stride of an array");
  }
  return strides;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common = a;
  for (std::size_t dim = 0; dim < a.dims(); ++dim) {
    const Extent lower = std::max(a.lower(dim), b.lower(dim));
    const Extent upper = std::min(a.upper(dim), b.upper(dim));
    if (upper <= lower) return std::nullopt;
    common.offset[dim] = lower;
    common.size[dim] = upper - lower;
  }
  return common;
}

bool contains(const Box& outer, const Box& inner) {
  for (std::size_t dim = 0; dim < outer.dims(); ++dim) {
    if (inner.lower(dim) < outer.lower(dim) || inner.upper(dim) > outer.upper(dim)) return false;
  }
  return true;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    fmt::format_to(std::back_inserter(text), "{}{}:{}", dim == 0 ? "" : ", ", box.lower(dim), box.upper(dim));
  }
  return text + "]";
}

std::string to_string(const Extents& extents) {
  std::string text = "(";
  for (std::size_t dim = 0; dim < extents.size(); ++dim) {
    fmt::format_to(std::back_inserter(text), "{}{}", dim == 0 ? "" : ", ", extents[dim]);
  }
  return text + (extents.size() == 1 ? ",)" : ")");  // (5,) as in Python, to distinguish it from a number
}

}  // namespace shardwire
