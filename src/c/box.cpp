// SPDX-License-Identifier: Apache-2.0
#include "shardwire/box.hpp"

#include <algorithm>
#include <optional>

#include "c/guard.hpp"

namespace shardwire::c_api {
namespace {

Box known_box(const shardwire_box* given, const char* name) {
  return box_of(*required(given, name));
}

void require_same_dims(const Box& a, const Box& b) {
  if (a.dims() != b.dims()) refuse(fmt::format("boxes of {} and {} dims", a.dims(), b.dims()));
}

}  // namespace

SHARDWIRE_C_BEGIN

shardwire_code shardwire_box_whole(const int64_t* shape, size_t dims, shardwire_box* box, shardwire_error** error) {
  return give(box, error, [&] { return box_of(Box::whole(extents(shape, dims, "shape"))); });
}

shardwire_code shardwire_box_volume(const shardwire_box* box, int64_t* elements, shardwire_error** error) {
  return give(elements, error, [&] { return known_box(box, "box").volume(); });
}

bool shardwire_box_empty(const shardwire_box* box) {
  return box == nullptr || quietly(true, [&] { return box_of(*box).empty(); });
}

shardwire_code shardwire_box_intersect(const shardwire_box* a, const shardwire_box* b, bool* shared,
                                       shardwire_box* common, shardwire_error** error) {
  return guarded(error, [&] {
    const Box first = known_box(a, "a"), second = known_box(b, "b");
    require_same_dims(first, second);
    const std::optional<Box> found = intersect(first, second);
    if (shared) *shared = found.has_value();
    if (!common) return;
    const Extents none = Extents::filled(first.dims(), 0);
    *common = box_of(found.value_or(Box{none, none}));
  });
}

shardwire_code shardwire_box_contains(const shardwire_box* outer, const shardwire_box* inner, bool* contained,
                                      shardwire_error** error) {
  return give(contained, error, [&] {
    const Box around = known_box(outer, "outer"), inside = known_box(inner, "inner");
    require_same_dims(around, inside);
    return contains(around, inside);
  });
}

bool shardwire_box_equal(const shardwire_box* a, const shardwire_box* b) {
  return a && b ? quietly(false, [&] { return box_of(*a) == box_of(*b); }) : a == b;
}

size_t shardwire_box_to_string(const shardwire_box* box, char* text, size_t text_bytes) {
  return quietly(size_t{0}, [&] { return write_text(to_string(known_box(box, "box")), text, text_bytes); });
}

shardwire_code shardwire_shape_volume(const int64_t* shape, size_t dims, int64_t* elements, shardwire_error** error) {
  return give(elements, error, [&] { return volume_of(extents(shape, dims, "shape")); });
}

shardwire_code shardwire_shape_strides(const int64_t* shape, size_t dims, int64_t* strides, shardwire_error** error) {
  return guarded(error, [&] {
    const Extents found = row_major_strides(extents(shape, dims, "shape"));
    if (dims > 0) std::copy(found.begin(), found.end(), required(strides, "strides"));
  });
}

size_t shardwire_shape_to_string(const int64_t* shape, size_t dims, char* text, size_t text_bytes) {
  return quietly(size_t{0}, [&] { return write_text(to_string(extents(shape, dims, "shape")), text, text_bytes); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
