// SPDX-License-Identifier: Apache-2.0
#include "geometry/local_array.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "geometry/overlap.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

// `common`, a part of `inner` and of `image`, in tensor coordinates.
PlacedBox part_of(const Box& common, const Box& image, const PlacedBox& outer, const PlacedBox& inner) {
  PlacedBox part{common, inner.local_offset, inner.local_strides};
  for (std::size_t dim = 0; dim < common.dims(); ++dim) {
    part.box.offset[dim] = outer.box.offset[dim] + (common.offset[dim] - image.offset[dim]);
    part.local_offset += (common.offset[dim] - inner.box.offset[dim]) * inner.local_strides[dim];
  }
  return part;
}

}  // namespace

ElementCount saturating_product(ElementCount a, ElementCount b) {
  ElementCount product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<ElementCount>::max() : product;
}

ElementCount saturating_sum(ElementCount a, ElementCount b) {
  ElementCount sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<ElementCount>::max() : sum;
}

Box image_of(const PlacedBox& placed) {
  Box image{placed.box.size, placed.box.size};
  ElementCount rest = placed.local_offset;
  for (std::size_t dim = 0; dim < image.dims(); ++dim) {
    image.offset[dim] = rest / placed.local_strides[dim];
    rest %= placed.local_strides[dim];
  }
  return image;
}

Extents local_array_of(std::span<const PlacedBox> boxes, std::size_t dims) {
  Extents shape = Extents::filled(dims, 0);
  for (const PlacedBox& placed : boxes) {
    const Box image = image_of(placed);
    for (std::size_t dim = 0; dim < dims; ++dim) shape[dim] = std::max(shape[dim], image.upper(dim));
  }
  return shape;
}

std::vector<PlacedBox> through(std::span<const PlacedBox> outer, std::span<const PlacedBox> inner) {
  std::vector<PlacedBox> parts;
  std::vector<Box> images;
  images.reserve(outer.size());
  for (const PlacedBox& placed : outer) images.push_back(image_of(placed));
  const OverlapIndex index(images);
  std::vector<std::uint32_t> found;
  for (const PlacedBox& placed : inner) {
    index.find(placed.box, found);
    for (const std::uint32_t i : found) {
      parts.push_back(part_of(*intersect(placed.box, images[i]), images[i], outer[i], placed));
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const PlacedBox& a, const PlacedBox& b) { return a.local_offset < b.local_offset; });
  return parts;
}

void require_local_array(const Layout& outer) {
  if (outer.rule().has_local_array()) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("a {} layout cannot be the outer one: its boxes do not fill one local array; take replicated, "
                  "chunk, mesh or blockcyclic",
                  outer.kind()));
}

}  // namespace shardwire
