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

/// Where the memory of one tensor lies: none for the processor's.
using TensorPlace = std::optional<memory::DeviceAllocation>;
/// By entry of a catalog; empty when all of it is the processor's.
using TensorPlaces = std::vector<TensorPlace>;

/// Asks the driver, once for each tensor that may be a device's; nobody where no device is in use.
/// Errors: throws Error{unsupported} for memory that is said to be a device's in a process that has none, and
///         Error{invalid_argument} for memory that is no device's, another one's, or not as large as the layout says; both name
///         the tensor.
TensorPlaces places_of(const Catalog& catalog);
/// The same of a range that a view says something about. `refuse`: throws; told what is wrong, for people.
using RefuseMemory = std::function<void(ErrorCode code, const std::string& why)>;
TensorPlace place_of(const View& view, const std::byte* first, ByteCount bytes, const RefuseMemory& refuse);
/// Whether this is still the memory that it was: an address may be given back, and taken anew.
bool is_still_there(const memory::DeviceAllocation& allocation, const std::byte* data);
/// Ordinal of the device, or memory::on_host.
int device_of(const TensorPlaces& places, std::size_t entry);
/// All that there are, each once.
std::vector<int> devices_of(const TensorPlaces& places);
/// Managed memory is moved as memory of its device.
std::size_t count_managed(const TensorPlaces& places);

/// The events of a catalog's views, each once.
std::vector<memory::ReadyEvent> events_of(const Catalog& catalog, const TensorPlaces& places);

/// What a restore is to record. Errors: throws Error{unsupported} in a process that has no device, and Error{invalid_argument} for
/// no such device, or no event.
std::vector<memory::ReadyEvent> done_events_of(const RestoreOptions& options);

/// Makes copies, some of them of device memory, and waits for them.
using CopyAndWait = std::function<void(std::vector<memory::QueuedCopy> copies)>;
/// Of bytes in one piece.
memory::QueuedCopy copy_of_bytes(const std::byte* source, int source_device, std::byte* target, int target_device,
                                 ByteCount bytes);
/// A batch of these.
memory::CopyBatch on_devices(std::vector<memory::QueuedCopy> copies);

}  // namespace shardwire
