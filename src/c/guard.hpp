// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "c/handles.hpp"

namespace shardwire::c_api {

/// Describes the exception that is being handled to the caller. Returns its code.
shardwire_code failure(shardwire_error** error) noexcept;

/// Runs `body`. No exception gets past it.
template <typename Body>
shardwire_code guarded(shardwire_error** error, Body body) noexcept {
  try {
    body();
    return SHARDWIRE_OK;
  } catch (...) {
    return failure(error);
  }
}

/// Gives what `make` returns to the caller.
template <typename Result, typename Make>
shardwire_code give(Result* out, shardwire_error** error, Make make) noexcept {
  return guarded(error, [&] {
    required(out, "an out parameter");
    *out = make();
  });
}

/// The same as a handle that the caller owns.
template <typename Handle, typename Make>
shardwire_code create(Handle** out, shardwire_error** error, Make make) noexcept {
  return give(out, error, [&] { return owned<Handle>(make); });
}

/// For functions without an error: a failure, which only a lack of memory can cause, has the result `otherwise`.
template <typename Result, typename Body>
Result quietly(Result otherwise, Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

}  // namespace shardwire::c_api
