// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "shardwire/tensor.hpp"

namespace shardwire {

/// Whether `dtype` is one of the enumerators or of opaque(). A peer may send any number.
bool is_dtype(DType dtype);

/// "f64, f32, .., opaque1 to opaque65535": what parse_dtype() accepts.
std::string dtype_names();

/// For messages: the type that other libraries give this name, "f32" for "torch.float32"; else the name, in small letters.
std::string dtype_meant_by(std::string_view name);

}  // namespace shardwire
