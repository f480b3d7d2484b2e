// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <rdma/fi_errno.h>

#include <mutex>
#include <string_view>
#include <utility>

#include "transport/libfabric/handles.hpp"

namespace shardwire::transport::libfabric {

ErrorCode code_of(int error) {
  switch (error) {
    case FI_ENOMEM:
    case FI_ENOSPC:
    case FI_EMFILE: return ErrorCode::out_of_resources;
    case FI_ENODATA:
    case FI_ENODEV:
    case FI_ENOSYS:
    case FI_EOPNOTSUPP: return ErrorCode::unsupported;
    case FI_ETIMEDOUT: return ErrorCode::timed_out;
    // A foreign enumeration: every other status of a provider is a failure of the fabric.
    default: return ErrorCode::transport_failed;
  }
}

Fault fault_of(int error, const char* operation) {
  return {code_of(error), fmt::format("{}: {} (libfabric status {})", operation, fi_strerror(error), -error)};
}

namespace {

constexpr std::size_t no_class = 0;

struct Unclosed {
  std::mutex mutex;
  std::size_t count = 0;
  int last_status = 0;
  std::size_t last_class = no_class;
};
// Never destroyed: handles may be closed after static destruction has begun.
Unclosed& unclosed() {
  static auto& instance = *new Unclosed;
  return instance;
}

const char* class_name(std::size_t fid_class) {
  switch (fid_class) {
    case FI_CLASS_FABRIC: return "fabric";
    case FI_CLASS_DOMAIN: return "domain";
    case FI_CLASS_EP: return "endpoint";
    case FI_CLASS_AV: return "table of addresses";
    case FI_CLASS_MR: return "registration of memory";
    case FI_CLASS_CQ: return "completion queue";
    // A foreign enumeration.
    default: return "handle";
  }
}

}  // namespace

void close(fid& one) noexcept {
  const std::size_t fid_class = one.fclass;
  const int status = fi_close(&one);
  if (status == 0) return;
  const std::lock_guard lock(unclosed().mutex);
  ++unclosed().count;
  unclosed().last_status = status;
  unclosed().last_class = fid_class;
}

std::string take_unclosed() {
  const std::lock_guard lock(unclosed().mutex);
  const std::size_t count = std::exchange(unclosed().count, 0);
  if (count == 0) return {};
  return fmt::format(
      "libfabric has not closed {} of its objects, last a {}: {} (status {}); registered memory may stay open to "
      "peers that had its key",
      count, class_name(unclosed().last_class), fi_strerror(-unclosed().last_status), unclosed().last_status);
}

void check(int status, const char* operation, const char* file, int line) {
  if (status == 0) return;
  const std::string_view path = file;  // path on the build machine
  throw Error(code_of(-status),
              fmt::format("{} [{}:{}]", fault_of(-status, operation).message, path.substr(path.rfind('/') + 1), line));
}

}  // namespace shardwire::transport::libfabric
