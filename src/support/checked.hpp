// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>

#include "shardwire/error.hpp"

namespace shardwire::support {

/// Product or sum that must fit. Errors: throws Error{invalid_argument} that names `what`.
template <std::integral T>
T multiply(T a, T b, const char* what) {
  T result{};
  if (__builtin_mul_overflow(a, b, &result)) {
    throw Error(ErrorCode::invalid_argument, std::string(what) + " overflows 64 bits");
  }
  return result;
}

template <std::integral T>
T add(T a, T b, const char* what) {
  T result{};
  if (__builtin_add_overflow(a, b, &result)) {
    throw Error(ErrorCode::invalid_argument, std::string(what) + " overflows 64 bits");
  }
  return result;
}

template <std::integral T>
constexpr T ceil_div(T a, T b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

}  // namespace shardwire::support
