// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <uv.h>

#include <memory>
#include <string>

#include "shardwire/error.hpp"

namespace shardwire {

inline std::string uv_message(int status) {
  return uv_strerror(status);
}

/// The only place where libuv statuses become Errors: `otherwise`, unless a resource is exhausted.
inline ErrorCode uv_error_code(int status, ErrorCode otherwise = ErrorCode::transport_failed) {
  const bool resources = status == UV_EMFILE || status == UV_ENFILE || status == UV_ENOMEM || status == UV_ENOBUFS;
  return resources ? ErrorCode::out_of_resources : otherwise;
}

inline void check_uv(int status, const char* operation) {
  if (status >= 0) return;
  throw Error(uv_error_code(status), std::string(operation) + ": " + uv_message(status));
}

/// Owner of a libuv handle: closing is asynchronous, so the handle lives on the heap until libuv releases it.
template <typename Handle>
struct HandleCloser {
  void operator()(Handle* handle) const {
    auto* base = reinterpret_cast<uv_handle_t*>(handle);
    handle->data = nullptr;  // lets queued callbacks see that the owner is gone
    if (uv_is_closing(base) != 0) return;
    uv_close(base, [](uv_handle_t* closed) { delete reinterpret_cast<Handle*>(closed); });
  }
};
template <typename Handle>
using HandleOwner = std::unique_ptr<Handle, HandleCloser<Handle>>;

/// `init(handle)` returns a libuv status. Errors: throws its Error.
template <typename Handle, typename Init>
HandleOwner<Handle> make_handle(Init init, const char* operation) {
  auto handle = std::make_unique<Handle>();
  check_uv(init(handle.get()), operation);
  return HandleOwner<Handle>(handle.release());
}

}  // namespace shardwire
