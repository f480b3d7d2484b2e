// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <uv.h>

#include <string>

#include "shardwire/error.hpp"

namespace shardwire {

inline std::string uv_message(int status) {
  return uv_strerror(status);
}

/// libuv statuses become Errors here and nowhere else: `otherwise`, unless something has run out.
inline ErrorCode uv_error_code(int status, ErrorCode otherwise = ErrorCode::transport_failed) {
  const bool resources = status == UV_EMFILE || status == UV_ENFILE || status == UV_ENOMEM || status == UV_ENOBUFS;
  return resources ? ErrorCode::out_of_resources : otherwise;
}

inline void check_uv(int status, const char* operation) {
  if (status >= 0) return;
  throw Error(uv_error_code(status), std::string(operation) + ": " + uv_message(status));
}

}  // namespace shardwire
