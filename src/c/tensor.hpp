// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/tensor.h"
#include "shardwire/tensor.hpp"

namespace shardwire::c_api {

/// Errors: throws Error{invalid_argument} for a number that is no type.
DType dtype_of_number(shardwire_dtype number);

/// Errors: throws Error{invalid_argument} for missing fields, Error{unsupported} for too many dims.
TensorSpec spec_of(const shardwire_tensor* tensor);
/// Borrows strings and shape of `spec`.
shardwire_tensor tensor_of(const TensorSpec& spec);

}  // namespace shardwire::c_api
