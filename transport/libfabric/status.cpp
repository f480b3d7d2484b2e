// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>
#include <rdma/fi_errno.h>

#include <string_view>

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
    // Not one of our enumerations: whatever else a provider reports is a failure of the fabric.
    default: return ErrorCode::transport_failed;
  }
}

Fault fault_of(int error, const char* operation) {
  return {code_of(error), fmt::format("{}: {} (libfabric status {})", operation, fi_strerror(error), -error)};
}

void check(int status, const char* operation, const char* file, int line) {
  if (status == 0) return;
  const std::string_view path = file;  // of the machine that built this
  throw Error(code_of(-status),
              fmt::format("{} [{}:{}]", fault_of(-status, operation).message, path.substr(path.rfind('/') + 1), line));
}

}  // namespace shardwire::transport::libfabric
