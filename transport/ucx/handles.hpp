// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ucp/api/ucp.h>

#include <memory>
#include <string>
#include <utility>

#include "transport/transport.hpp"

// One C handle per object, and the one place where UCX's statuses become errors.
namespace shardwire::transport::ucx {

/// Keeps what UCX logs on this thread off stderr while it lives, unless the user has set UCX_LOG_LEVEL; the last line
/// is kept for the text of an Error. Other users of UCX in the process log as before.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

ErrorCode code_of(ucs_status_t status);
Fault fault_of(ucs_status_t status, const char* operation);
/// Errors: throws Error for every status but UCS_OK.
/// (The built-ins stand for std::source_location, which clang has only from 15 on.)
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
    const Quiet quiet;  // what was given up on is still listed in it, and it says so
    ucp_worker_destroy(worker);
  }
};
using WorkerHandle = std::unique_ptr<ucp_worker, WorkerDeleter>;

struct RemoteKeyDeleter {
  void operator()(ucp_rkey* key) const { ucp_rkey_destroy(key); }
};
using RemoteKeyHandle = std::unique_ptr<ucp_rkey, RemoteKeyDeleter>;

/// A file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  [[nodiscard]] int value() const { return value_; }

 private:
  int value_ = -1;
};

}  // namespace shardwire::transport::ucx
