// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "shardwire/error.hpp"

namespace shardwire::detail {

/// The state behind a public handle. Errors: throws Error{invalid_argument} for a handle that is empty or moved from.
template <typename State>
State& checked(const std::shared_ptr<State>& state, const char* what) {
  if (!state) throw Error(ErrorCode::invalid_argument, std::string("this ") + what + " is empty, or was moved from");
  return *state;
}

}  // namespace shardwire::detail
