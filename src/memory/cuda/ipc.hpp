// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "memory/cuda/allocation.hpp"
#include "memory/cuda/platform.hpp"
#include "memory/device.hpp"

// Device memory shared between processes of a host. Both functions require the device's context to be current.
namespace shardwire::memory::cuda {

/// Errors: as DeviceRuntime::export_memory().
DeviceExport export_chunks(Platform& platform, const FoundAllocation& found, std::uint64_t address, ByteCount bytes);

/// Errors: as DeviceRuntime, and Error{invalid_argument} for data that no process has exported.
std::unique_ptr<DeviceMemory> map_export(const std::shared_ptr<Platform>& platform, int device,
                                         const DeviceExport& exported);

}  // namespace shardwire::memory::cuda
