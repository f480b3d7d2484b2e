// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <exception>
#include <functional>

#include "c/arguments.hpp"

namespace shardwire::c_api {

/// Calls a callback. Callbacks that are written in C++ may throw anything: that becomes Error{cancelled}.
template <typename Callback>
auto called(const char* name, Callback callback) -> decltype(callback()) {
  try {
    return callback();
  } catch (const std::exception& error) {
    throw Error(ErrorCode::cancelled, fmt::format("the callback {} threw: {}", name, error.what()));
  } catch (...) {
    throw Error(ErrorCode::cancelled, fmt::format("the callback {} threw an exception", name));
  }
}

/// Calls a callback in a place where nothing can take an exception.
template <typename Callback>
void called_quietly(Callback callback) noexcept {
  try {
    callback();
  } catch (...) {
  }
}

}  // namespace shardwire::c_api
