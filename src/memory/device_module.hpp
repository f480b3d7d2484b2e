// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "memory/device.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// Creates a trial copy of that many runs, twice their length apart at the source and contiguous at the target. The
/// library provides it to modules, which contain none of its code.
using MakeTrial = StridedCopy (*)(ByteCount runs, ByteCount run_bytes);

/// The interface of a module with a device runtime (support/module.hpp).
struct DeviceModule {
  FoundRuntime (*find)(MakeTrial make_trial);
};

}  // namespace shardwire::memory
