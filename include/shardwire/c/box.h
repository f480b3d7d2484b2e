// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/error.h"

SHARDWIRE_C_BEGIN

/// The whole of a tensor.
shardwire_code shardwire_box_whole(const int64_t* shape, size_t dims, shardwire_box* box, shardwire_error** error);
/// Number of elements; 1 for a box of zero dimensions. Errors: INVALID_ARGUMENT beyond 64 bits.
shardwire_code shardwire_box_volume(const shardwire_box* box, int64_t* elements, shardwire_error** error);
/// True for NULL, and for a box of volume 0.
bool shardwire_box_empty(const shardwire_box* box);
/// The region that two boxes share; `*shared` is false if there is none, and `*common` is then an empty box. Either out
/// parameter may be NULL. Errors: INVALID_ARGUMENT for boxes of different dims.
shardwire_code shardwire_box_intersect(const shardwire_box* a, const shardwire_box* b, bool* shared,
                                       shardwire_box* common, shardwire_error** error);
/// Errors: INVALID_ARGUMENT for boxes of different dims.
shardwire_code shardwire_box_contains(const shardwire_box* outer, const shardwire_box* inner, bool* contained,
                                      shardwire_error** error);
/// Entries past `dims` do not count. Two NULLs are equal.
bool shardwire_box_equal(const shardwire_box* a, const shardwire_box* b);
/// For people, e.g. "[0:4, 8:16]"; writes and returns as shardwire_dtype_to_string() does.
size_t shardwire_box_to_string(const shardwire_box* box, char* text, size_t text_bytes);

/// Product of all extents; 1 for a scalar. Errors: INVALID_ARGUMENT beyond 64 bits.
shardwire_code shardwire_shape_volume(const int64_t* shape, size_t dims, int64_t* elements, shardwire_error** error);
/// Strides, in elements, of a dense row-major array of this shape. Writes `dims` entries.
shardwire_code shardwire_shape_strides(const int64_t* shape, size_t dims, int64_t* strides, shardwire_error** error);
/// For people, e.g. "(4096, 14336)"; writes and returns as shardwire_dtype_to_string() does.
size_t shardwire_shape_to_string(const int64_t* shape, size_t dims, char* text, size_t text_bytes);

SHARDWIRE_C_END
