// SPDX-License-Identifier: Apache-2.0
#include "catalog/tensor_places.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "catalog/description.hpp"
#include "geometry/footprint.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

namespace {

bool is_said_to_be_there(const View& view) {
  return view.kind == MemoryKind::cuda || view.device >= 0;
}

bool names_a_device(const View& view) {
  return is_said_to_be_there(view) || view.ready_event != nullptr;
}

bool holds(const memory::DeviceAllocation& allocation, std::uintptr_t first, std::uintptr_t end) {
  const auto begin = reinterpret_cast<std::uintptr_t>(allocation.address);
  return first >= begin && end - begin <= allocation.bytes;
}

std::string ends_outside(const memory::DeviceAllocation& found) {
  return fmt::format(
      "ends outside of the allocation of {} bytes on device {}: the view must not be larger than the allocation",
      found.bytes, found.device);
}

/// The driver's view of memory that may belong to a device.
TensorPlace look_up(const memory::DeviceRuntime& runtime, const View& view, const void* first, ByteCount bytes,
                    const RefuseMemory& refuse) {
  TensorPlace found;
  try {
    found = runtime.find(first, bytes);
  } catch (const Error& error) {
    // A failed driver has no information, and the view does not name a device.
    if (error.code() == ErrorCode::transport_failed && !names_a_device(view)) return {};
    refuse(error.code(), std::string("cannot be used: ") + error.what());
  }
  if (found && view.device >= 0 && view.device != found->device) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("is memory of device {}, and its view says device {}", found->device, view.device));
  }
  if (!found && is_said_to_be_there(view)) {
    refuse(ErrorCode::invalid_argument,
           "is declared as device memory but is not: it was freed, or never was device memory");
  }
  return found;
}

bool is_large_enough(const Catalog::Entry& entry, const memory::DeviceAllocation& found, const PlacedBoxes& boxes) {
  const ByteCount item_bytes = item_size(entry.spec.dtype);
  const auto first = reinterpret_cast<std::uintptr_t>(entry.view.data);
  if (holds(found, first, first + static_cast<ByteCount>(boxes.local_end()) * item_bytes)) return true;
  bool all = true;  // of the elements: memory between them may be unmapped
  Footprint(entry.view.data, boxes, item_bytes).each_run([&](Footprint::Range run) {
    all = all && holds(found, run.first, run.end);
  });
  return all;
}

}  // namespace

TensorPlaces places_of(const Catalog& catalog) {
  const auto& entries = catalog.entries();
  const auto named = std::ranges::find_if(entries, names_a_device, &Catalog::Entry::view);
  if (named == entries.end() && !memory::devices_in_use()) return {};
  const auto refuse = [&](ErrorCode code, const Catalog::Entry& entry, const std::string& why) {
    throw Error(code, fmt::format("{}: its memory on layout rank {}, at {}, {}", to_string(entry.spec.key),
                                  to_int(catalog.layout_rank()), entry.view.data, why));
  };
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) {
    if (named != entries.end()) {
      refuse(ErrorCode::unsupported, *named, "is a device's or has an event, and there is no device: " + found.why_not);
    }
    return {};
  }
  TensorPlaces places(entries.size());
  BoxCache cache;
  bool any = false;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Catalog::Entry& entry = entries[i];
    if (entry.view.data == nullptr || entry.view.kind == MemoryKind::host) continue;
    const PlacedBoxes& boxes = boxes_of(entry, catalog.layout_rank(), cache);
    if (boxes.local_end() == 0) continue;
    places[i] = look_up(*found.runtime, entry.view, entry.view.data,
                        static_cast<ByteCount>(boxes.local_end()) * item_size(entry.spec.dtype),
                        [&](ErrorCode code, const std::string& why) { refuse(code, entry, why); });
    any = any || places[i];
    if (places[i] && !is_large_enough(entry, *places[i], boxes)) {
      refuse(ErrorCode::invalid_argument, entry, ends_outside(*places[i]));
    }
  }
  return any ? places : TensorPlaces{};
}

TensorPlace place_of(const View& view, const std::byte* first, ByteCount bytes, const RefuseMemory& refuse) {
  const bool named = is_said_to_be_there(view);
  if (view.kind == MemoryKind::host || (!named && !memory::devices_in_use())) return {};
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) {
    if (named) refuse(ErrorCode::unsupported, "are said to be a device's, and there is no device: " + found.why_not);
    return {};
  }
  const TensorPlace place = look_up(*found.runtime, view, first, bytes, refuse);
  const auto begin = reinterpret_cast<std::uintptr_t>(first);
  if (place && !holds(*place, begin, begin + bytes)) refuse(ErrorCode::invalid_argument, ends_outside(*place));
  return place;
}

bool is_still_there(const memory::DeviceAllocation& allocation, const std::byte* data) {
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) return false;
  try {
    // Same range as the first query: to the end of the same chunks.
    const auto now = found.runtime->find(data, static_cast<ByteCount>(allocation.address + allocation.bytes - data));
    return now && now->number == allocation.number && now->device == allocation.device;
  } catch (const Error&) {
    return false;
  }
}

int device_of(const TensorPlaces& places, std::size_t entry) {
  return entry < places.size() && places[entry] ? places[entry]->device : memory::on_host;
}

std::size_t count_managed(const TensorPlaces& places) {
  return static_cast<std::size_t>(
      std::ranges::count_if(places, [](const TensorPlace& place) { return place && place->managed; }));
}

std::vector<memory::ReadyEvent> events_of(const Catalog& catalog, const TensorPlaces& places) {
  std::vector<memory::ReadyEvent> events;
  std::set<void*> known;
  for (std::size_t i = 0; i < catalog.entries().size(); ++i) {
    const View& view = catalog.entries()[i].view;
    if (view.ready_event == nullptr || !known.insert(view.ready_event).second) continue;
    events.push_back({view.ready_event, std::max({device_of(places, i), view.device, 0})});
  }
  return events;
}

std::vector<memory::ReadyEvent> done_events_of(const RestoreOptions& options) {
  std::vector<memory::ReadyEvent> events;
  if (options.done_events.empty()) return events;
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) {
    throw Error(ErrorCode::unsupported, "done_events cannot be recorded, there is no device: " + found.why_not);
  }
  for (const DoneEvent& done : options.done_events) {
    if (done.event == nullptr) throw Error(ErrorCode::invalid_argument, "done_events: there is no event");
    if (done.device < 0 || done.device >= found.runtime->device_count()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("done_events: there is no device {}, this process has {}",
                                                           done.device, found.runtime->device_count()));
    }
    events.push_back({done.event, done.device});
  }
  return events;
}

memory::QueuedCopy copy_of_bytes(const std::byte* source, int source_device, std::byte* target, int target_device,
                                 ByteCount bytes) {
  const Box all = Box::whole({static_cast<Extent>(bytes)});
  const PlacedBox dense = memory::packed(all);
  return {memory::StridedCopy(all, dense, dense, 1), source, target, source_device, target_device};
}

memory::CopyBatch on_devices(std::vector<memory::QueuedCopy> copies) {
  const std::size_t count = copies.size();
  return {.count = count,
          .copy = [list = std::move(copies)](std::size_t index) { return list[index]; },
          .on_devices = true};
}

}  // namespace shardwire
