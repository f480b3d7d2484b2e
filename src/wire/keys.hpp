// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/error.hpp"
#include "shardwire/tensor.hpp"
#include "wire/limits.hpp"

namespace shardwire::wire {

/// Refuses a key that no peer would accept. Errors: throws Error{invalid_argument}.
inline void check_key(const TensorKey& key) {
  const auto fits = [](const std::string& text, std::size_t max_bytes) {
    return text.size() <= max_bytes && text.find('\0') == std::string::npos;
  };
  if (!fits(key.fqn, max_fqn_bytes) || !fits(key.state, max_name_bytes)) {
    throw Error(ErrorCode::invalid_argument,
                "tensor key " + to_string(key).substr(0, 128) + " is too long to travel or has a zero byte");
  }
}

}  // namespace shardwire::wire
