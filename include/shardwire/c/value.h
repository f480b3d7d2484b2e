// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/tensor.h"

SHARDWIRE_C_BEGIN

/// Kinds never convert into one another: 1 and 1.0 differ, and a tuple differs from every list.
typedef int32_t shardwire_value_kind;
enum {
  SHARDWIRE_VALUE_NONE = 0,
  SHARDWIRE_VALUE_BOOL = 1,
  SHARDWIRE_VALUE_INT = 2,
  SHARDWIRE_VALUE_DOUBLE = 3,
  SHARDWIRE_VALUE_STRING = 4,
  SHARDWIRE_VALUE_BYTES = 5,
  SHARDWIRE_VALUE_TENSOR = 6,
  SHARDWIRE_VALUE_LIST = 7,
  SHARDWIRE_VALUE_TUPLE = 8,
  SHARDWIRE_VALUE_MAP = 9,
};

/// A value that travels inside a publication instead of as boxes.
/// Threads: functions that take a const value may run concurrently.
typedef struct shardwire_value shardwire_value;
void shardwire_value_free(shardwire_value* value);

/// Make a value. Each copies what it is given.
shardwire_code shardwire_value_none(shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_bool(bool content, shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_int(int64_t content, shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_double(double content, shardwire_value** value, shardwire_error** error);
/// Text of `text_bytes` bytes, which may contain NULs.
shardwire_code shardwire_value_string(const char* text, size_t text_bytes, shardwire_value** value,
                                      shardwire_error** error);
shardwire_code shardwire_value_bytes(const void* data, size_t data_bytes, shardwire_value** value,
                                     shardwire_error** error);
/// A small tensor. `data` is dense, row-major and little-endian.
/// Errors: INVALID_ARGUMENT unless `data_bytes` is the size of the shape.
shardwire_code shardwire_value_tensor(shardwire_dtype dtype, const int64_t* shape, size_t dims, const void* data,
                                      size_t data_bytes, shardwire_value** value, shardwire_error** error);
/// An empty list, tuple or map.
shardwire_code shardwire_value_list(shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_tuple(shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_map(shardwire_value** value, shardwire_error** error);
shardwire_code shardwire_value_copy(const shardwire_value* value, shardwire_value** copy, shardwire_error** error);

/// Adds a copy of `item` at the end of a list or tuple. Const handles of its items become invalid.
shardwire_code shardwire_value_append(shardwire_value* value, const shardwire_value* item, shardwire_error** error);
/// Sets the entry `key` of a map to a copy of `item`. Const handles of its items become invalid.
shardwire_code shardwire_value_set(shardwire_value* value, const char* key, const shardwire_value* item,
                                   shardwire_error** error);

/// SHARDWIRE_VALUE_NONE also for NULL.
shardwire_value_kind shardwire_value_kind_of(const shardwire_value* value);
/// Read a value. Errors: INVALID_ARGUMENT for a value of another kind.
shardwire_code shardwire_value_to_bool(const shardwire_value* value, bool* content, shardwire_error** error);
shardwire_code shardwire_value_to_int(const shardwire_value* value, int64_t* content, shardwire_error** error);
shardwire_code shardwire_value_to_double(const shardwire_value* value, double* content, shardwire_error** error);
/// The content of a string, bytes or a tensor, and its size; a string is followed by a NUL that the size excludes.
shardwire_code shardwire_value_data(const shardwire_value* value, const void** data, size_t* data_bytes,
                                    shardwire_error** error);
/// Type and shape of a tensor. `shape` has SHARDWIRE_MAX_DIMS entries, of which the first `*dims` are written.
shardwire_code shardwire_value_tensor_of(const shardwire_value* value, shardwire_dtype* dtype, int64_t* shape,
                                         size_t* dims, shardwire_error** error);
/// Number of items of a list, tuple or map; 0 for any other value.
size_t shardwire_value_count(const shardwire_value* value);
/// Item `index` of a list or tuple, or of a map in ascending order of keys; NULL if there is none.
const shardwire_value* shardwire_value_item(const shardwire_value* value, size_t index);
/// Key of item `index` of a map; NULL if there is none.
const char* shardwire_value_item_key(const shardwire_value* value, size_t index);
/// Item of a map by key; NULL if there is none.
const shardwire_value* shardwire_value_find(const shardwire_value* value, const char* key);

/// Same kind and same content. Floats are compared by their bits. Two NULLs are equal.
bool shardwire_value_equal(const shardwire_value* a, const shardwire_value* b);
/// For people, e.g. "[0.9, 0.95]"; writes and returns as shardwire_dtype_to_string() does.
size_t shardwire_value_to_string(const shardwire_value* value, char* text, size_t text_bytes);

SHARDWIRE_C_END
