// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "transport/bytes.hpp"
#include "transport/nccl/handles.hpp"

namespace shardwire::transport::nccl {

namespace {

struct Found {
  const Api* api = nullptr;
  std::shared_ptr<memory::DeviceRuntime> runtime;  // owners: this process and its users
  std::string why_not;
};

// Look for a device first: without one, NCCL is not loaded.
Found find() {
  memory::FoundRuntime devices = memory::device_runtime();
  if (!devices.runtime) return {nullptr, nullptr, "no GPU: " + devices.why_not};
  if (devices.runtime->device_count() == 0) return {nullptr, nullptr, "no GPU: there is no device"};
  FoundApi library = find_api();
  return {library.api, std::move(devices.runtime), std::move(library.why_not)};
}

Found require() {
  Found found = find();
  if (found.api == nullptr) throw Error(ErrorCode::unsupported, "the nccl collective is off: " + found.why_not);
  return found;
}

}  // namespace

Viability probe() {
  const Found found = find();
  if (found.api == nullptr) return {false, found.why_not, FallbackReason::library_missing};
  int version = 0;
  if (found.api->version(&version) != success)
    return {false, "NCCL does not give its version", FallbackReason::library_unfit};
  return {true, fmt::format("NCCL {}, {}", version_text(version), found.runtime->version())};
}

std::string domain() {
  const Found found = require();
  int version = 0;
  if (found.api->version(&version) != success) throw Error(ErrorCode::unsupported, "NCCL does not give its version");
  return version_text(version);
}

Bytes make_group_id() {
  const Found found = require();
  UniqueId id;
  const int result = found.api->unique_id(&id);
  if (result != success) {
    throw Error(ErrorCode::transport_failed,
                fmt::format("NCCL gives no id for a group: {}", found.api->error_string(result)));
  }
  Bytes bytes;
  append(bytes, id);
  return bytes;
}

std::unique_ptr<Collective> open(const GroupSetup& setup) {
  Found found = require();
  return open_with(setup, *found.api, std::move(found.runtime));
}

int device_of(void* communicator) {
  const Found found = require();
  if (const std::string doubt = doubt_about_library(); !doubt.empty()) {
    throw Error(ErrorCode::unsupported, "the caller's communicator cannot be used: " + doubt);
  }
  int device = -1;
  const int result = found.api->device(static_cast<Communicator*>(communicator), &device);
  if (result == success) return device;
  throw Error(ErrorCode::invalid_argument, fmt::format("the caller's communicator cannot be used: ncclCommCuDevice: {}",
                                                       found.api->error_string(result)));
}

}  // namespace shardwire::transport::nccl
