// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>

#include "transport/transport.hpp"

// One C handle per object, and the only place that converts UCX's statuses to errors.
namespace shardwire::transport::ucx {

/// Suppresses UCX's log output of this thread on stderr during its lifetime, unless the user has set UCX_LOG_LEVEL. The
/// last line is kept for the text of an Error. Other users of UCX in the process log as before.
class ScopedLogSuppression {
 public:
  ScopedLogSuppression();
  ~ScopedLogSuppression();
  ScopedLogSuppression(const ScopedLogSuppression&) = delete;
  ScopedLogSuppression& operator=(const ScopedLogSuppression&) = delete;
};

ErrorCode code_of(ucs_status_t status);
Fault fault_of(ucs_status_t status, const char* operation);
/// Errors: throws Error for every status but UCS_OK. (The built-ins replace std::source_location, which clang has only
///         from 15 on.)
void check(ucs_status_t status, const char* operation, const char* file = __builtin_FILE(),
           int line = __builtin_LINE());

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ConfigDeleter>;

struct ContextDeleter {
  void operator()(ucp_context* context) const { ucp_cleanup(context); }
};
using ContextHandle = std::unique_ptr<ucp_context, ContextDeleter>;

struct WorkerDeleter {
  void operator()(ucp_worker* worker) const {
    const ScopedLogSuppression no_log;  // UCX logs abandoned requests that are still listed
    ucp_worker_destroy(worker);
  }
};
using WorkerHandle = std::unique_ptr<ucp_worker, WorkerDeleter>;

}  // namespace shardwire::transport::ucx
