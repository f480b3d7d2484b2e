// SPDX-License-Identifier: Apache-2.0
#include "c/tensor.hpp"

#include "c/guard.hpp"
#include "c/structs.hpp"
#include "geometry/dtypes.hpp"
#include "support/nearest.hpp"

namespace shardwire::c_api {

static_assert(SHARDWIRE_MAX_DIMS == max_dims);
static_assert(static_cast<shardwire_dtype>(DType::f64) == SHARDWIRE_F64);
static_assert(static_cast<shardwire_dtype>(DType::boolean) == SHARDWIRE_BOOL);
static_assert(static_cast<shardwire_dtype>(DType::f8e8m0) == SHARDWIRE_F8E8M0);

DType dtype_of_number(shardwire_dtype number) {
  const auto dtype = static_cast<DType>(number);
  item_size(dtype);  // refuses a number that is no type
  return dtype;
}

TensorSpec spec_of(const shardwire_tensor* tensor) {
  const shardwire_tensor given = read(tensor, "tensor");
  return {key_of(given.fqn, given.state), dtype_of_number(given.dtype), extents(given.shape, given.dims, "shape")};
}

shardwire_tensor tensor_of(const TensorSpec& spec) {
  shardwire_tensor out = defaults<shardwire_tensor>();
  out.dtype = static_cast<shardwire_dtype>(spec.dtype);
  out.fqn = spec.key.fqn.c_str();
  out.state = spec.key.state.c_str();
  out.shape = spec.shape.begin();
  out.dims = spec.shape.size();
  return out;
}

void set_defaults(shardwire_tensor& tensor) {
  tensor.dtype = SHARDWIRE_DTYPE_NONE;
}

SHARDWIRE_C_BEGIN

void shardwire_tensor_init(shardwire_tensor* tensor, size_t size) {
  initialize(tensor, size);
}

shardwire_code shardwire_dtype_opaque(uint64_t item_bytes, shardwire_dtype* dtype, shardwire_error** error) {
  return give(dtype, error, [&] { return static_cast<shardwire_dtype>(opaque(item_bytes)); });
}

shardwire_code shardwire_dtype_item_bytes(shardwire_dtype dtype, uint64_t* item_bytes, shardwire_error** error) {
  return give(item_bytes, error, [&] { return item_size(static_cast<DType>(dtype)); });
}

shardwire_code shardwire_dtype_parse(const char* name, shardwire_dtype* dtype, shardwire_error** error) {
  return give(dtype, error, [&] {
    const std::optional<DType> found = parse_dtype(required(name, "name"));
    if (!found) {
      refuse(fmt::format("there is no type '{}'{}", name, support::known_words(dtype_meant_by(name), dtype_names())));
    }
    return static_cast<shardwire_dtype>(*found);
  });
}

size_t shardwire_dtype_to_string(shardwire_dtype dtype, char* text, size_t text_bytes) {
  return quietly(size_t{0}, [&] { return write_text(to_string(dtype_of_number(dtype)), text, text_bytes); });
}

SHARDWIRE_C_END

}  // namespace shardwire::c_api
