// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shardwire/tensor.hpp"

namespace shardwire {

/// Whether `dtype` is one of the enumerators or of opaque(). A peer may send any number.
bool is_dtype(DType dtype);

/// "f64, f32, .., opaque1 to opaque65535": what parse_dtype() accepts.
std::string dtype_names();

}  // namespace shardwire
