// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/device.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// So many runs, twice their length apart at the source and side by side at the target: what a module tries a device with, made by
/// the library, whose code it has none of.
using MakeTrial = StridedCopy (*)(ByteCount runs, ByteCount run_bytes);

/// What a module with a device runtime gives (support/module.hpp).
struct DeviceModule {
  FoundRuntime (*find)(MakeTrial make_trial);
};

}  // namespace shardwire::memory
