// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/cuda/handles.hpp"
#include "memory/cuda/platform.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory::cuda {

/// On the device of the current context. Errors: as DeviceRuntime.
DeviceBytes allocate_on_device(Platform& platform, ByteCount bytes);
/// Pinned, and known to every device. Errors: as DeviceRuntime.
HostBytes allocate_on_host(Platform& platform, ByteCount bytes);

}  // namespace shardwire::memory::cuda
