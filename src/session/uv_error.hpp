// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <uv.h>

#include <string>

#include "shardwire/error.hpp"

namespace shardwire {

inline std::string uv_message(int status) {
  return uv_strerror(status);
}

/// libuv statuses become Errors here and nowhere else.
inline void check_uv(int status, const char* operation) {
  if (status >= 0) return;
  const bool resources = status == UV_EMFILE || status == UV_ENFILE || status == UV_ENOMEM || status == UV_ENOBUFS;
  throw Error(resources ? ErrorCode::out_of_resources : ErrorCode::transport_failed,
              std::string(operation) + ": " + uv_message(status));
}

}  // namespace shardwire
