// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/error.h"

SHARDWIRE_C_BEGIN

/// Element types. Elements move as bytes and are never converted. shardwire_dtype_opaque() makes others.
typedef uint32_t shardwire_dtype;
enum {
  SHARDWIRE_F64 = 0,
  SHARDWIRE_F32 = 1,
  SHARDWIRE_F16 = 2,
  SHARDWIRE_BF16 = 3,
  SHARDWIRE_F8E4M3 = 4,
  SHARDWIRE_F8E5M2 = 5,
  SHARDWIRE_I64 = 6,
  SHARDWIRE_I32 = 7,
  SHARDWIRE_I16 = 8,
  SHARDWIRE_I8 = 9,
  SHARDWIRE_U8 = 10,
  SHARDWIRE_BOOL = 11,
  SHARDWIRE_U64 = 12,
  SHARDWIRE_U32 = 13,
  SHARDWIRE_U16 = 14,
  SHARDWIRE_COMPLEX128 = 15,  ///< two f64
  SHARDWIRE_COMPLEX64 = 16,   ///< two f32
  SHARDWIRE_F8E4M3FNUZ = 17,
  SHARDWIRE_F8E5M2FNUZ = 18,
  SHARDWIRE_F8E8M0 = 19,
};
/// No type.
#define SHARDWIRE_DTYPE_NONE UINT32_MAX

/// The type of elements that have no other type here: blocks of an 8-bit optimizer, pairs of 4-bit numbers, structs.
/// `item_bytes` is 1 to 65535. An opaque element is never split.
shardwire_code shardwire_dtype_opaque(uint64_t item_bytes, shardwire_dtype* dtype, shardwire_error** error);
/// Bytes of one element. Errors: INVALID_ARGUMENT for a number that is no type.
shardwire_code shardwire_dtype_item_bytes(shardwire_dtype dtype, uint64_t* item_bytes, shardwire_error** error);
/// The type of a name such as "f32", "bool" or "opaque16". Errors: INVALID_ARGUMENT for other names.
shardwire_code shardwire_dtype_parse(const char* name, shardwire_dtype* dtype, shardwire_error** error);
/// Writes the name of the type and a NUL, at most `text_bytes` bytes. Returns the length of the whole name without the
/// NUL; 0 for a number that is no type.
size_t shardwire_dtype_to_string(shardwire_dtype dtype, char* text, size_t text_bytes);

/// Properties of a tensor that all ranks share.
typedef struct shardwire_tensor {
  size_t size;
  uint32_t version;
  shardwire_dtype dtype;  ///< required
  const char* fqn;        ///< e.g. "layers.3.mlp.down_proj.weight"; the only name that crosses the wire; required
  const char* state;      ///< e.g. "exp_avg"; required
  const int64_t* shape;   ///< global shape, `dims` entries
  size_t dims;            ///< at most SHARDWIRE_MAX_DIMS; 0 is a scalar
} shardwire_tensor;
void shardwire_tensor_init(shardwire_tensor* tensor, size_t size);

SHARDWIRE_C_END
