// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "memory/device_events.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/options.hpp"

namespace shardwire {

/// Place of one tensor's memory; none for host memory.
using TensorPlace = std::optional<memory::DeviceAllocation>;
/// By entry of a catalog; empty if all memory is the host's.
using TensorPlaces = std::vector<TensorPlace>;

/// Asks the driver, once for each tensor that may be on a device; does not ask if no device is in use.
/// Errors: throws Error{unsupported} for views that name a device in a process that has none, and
///         Error{invalid_argument} if the memory is on no device, on another one, or smaller than the layout requires;
///         both name the tensor.
TensorPlaces places_of(const Catalog& catalog);
/// Place of a single range described by a view. `refuse` throws; its argument is the reason, for people.
using RefuseMemory = std::function<void(ErrorCode code, const std::string& why)>;
TensorPlace place_of(const View& view, const std::byte* first, ByteCount bytes, const RefuseMemory& refuse);
/// Whether the allocation still exists: its address may have been freed and reused.
bool is_still_there(const memory::DeviceAllocation& allocation, const std::byte* data);
/// Ordinal of the device, or memory::on_host.
int device_of(const TensorPlaces& places, std::size_t entry);
/// Number of managed tensors. Managed memory moves as memory of its device.
std::size_t count_managed(const TensorPlaces& places);

/// The events of a catalog's views, each once.
std::vector<memory::ReadyEvent> events_of(const Catalog& catalog, const TensorPlaces& places);

/// The events that a restore records. Errors: throws Error{unsupported} in a process that has no device, and
/// Error{invalid_argument} for an unknown device or a null event.
std::vector<memory::ReadyEvent> done_events_of(const RestoreOptions& options);

/// Runs copies, some of them of device memory, and waits for them.
using CopyAndWait = std::function<void(std::vector<memory::QueuedCopy> copies)>;
/// A copy of one contiguous range.
memory::QueuedCopy copy_of_bytes(const std::byte* source, int source_device, std::byte* target, int target_device,
                                 ByteCount bytes);
/// A batch of such copies.
memory::CopyBatch on_devices(std::vector<memory::QueuedCopy> copies);

}  // namespace shardwire
