// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <ucs/debug/log_def.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {
namespace {

thread_local int quiet_depth = 0;
thread_local std::array<char, 256> last_line{};

ucs_log_func_rc_t keep_off_stderr(const char*, unsigned, const char*, ucs_log_level_t level,
                                  const ucs_log_component_config_t*, const char* format, va_list arguments) {
  if (quiet_depth == 0 || level == UCS_LOG_LEVEL_FATAL) return UCS_LOG_FUNC_RC_CONTINUE;
  if (level == UCS_LOG_LEVEL_ERROR) std::vsnprintf(last_line.data(), last_line.size(), format, arguments);
  return UCS_LOG_FUNC_RC_STOP;
}

void install_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (std::getenv("UCX_LOG_LEVEL") == nullptr) ucs_log_push_handler(keep_off_stderr);
  });
}

}  // namespace

ScopedLogSuppression::ScopedLogSuppression() {
  install_once();
  if (quiet_depth++ == 0) last_line.front() = '\0';
}
ScopedLogSuppression::~ScopedLogSuppression() {
  --quiet_depth;
}

ErrorCode code_of(ucs_status_t status) {
  switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
    case UCS_ERR_SHMEM_SEGMENT: return ErrorCode::out_of_resources;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED: return ErrorCode::unsupported;
    case UCS_ERR_CANCELED: return ErrorCode::cancelled;
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_REJECTED: return ErrorCode::peer_lost;
    // A foreign enumeration: every other status of any UCX version is a failure of the fabric.
    default: return ErrorCode::transport_failed;
  }
}

Fault fault_of(ucs_status_t status, const char* operation) {
  return {code_of(status),
          fmt::format("{}: {} (UCX status {})", operation, ucs_status_string(status), static_cast<int>(status))};
}

void check(ucs_status_t status, const char* operation, const char* file, int line) {
  if (status == UCS_OK) return;
  const char* detail = quiet_depth > 0 ? last_line.data() : "";
  const std::string_view path = file;  // path on the build machine
  throw Error(code_of(status),
              fmt::format("{}{}{} [{}:{}]", fault_of(status, operation).message, *detail == '\0' ? "" : ": ", detail,
                          path.substr(path.rfind('/') + 1), line));
}

}  // namespace shardwire::transport::ucx
