// SPDX-License-Identifier: Apache-2.0
#include "session/tensor_places.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "geometry/footprint.hpp"
#include "session/source/publication.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

namespace {

bool names_a_device(const Catalog::Entry& entry) {
  return entry.view.kind == MemoryKind::cuda || entry.view.device >= 0 || entry.view.ready_event != nullptr;
}

bool holds(const memory::DeviceAllocation& allocation, std::uintptr_t first, std::uintptr_t end) {
  const auto begin = reinterpret_cast<std::uintptr_t>(allocation.address);
  return first >= begin && end - begin <= allocation.bytes;
}

/// What is wrong with a view, for people; empty: nothing.
std::string fault_of(const Catalog::Entry& entry, const memory::DeviceAllocation& found, const PlacedBoxes& boxes) {
  if (entry.view.device >= 0 && entry.view.device != found.device) {
    return fmt::format("is memory of device {}, and its view says device {}", found.device, entry.view.device);
  }
  const ByteCount item_bytes = item_size(entry.spec.dtype);
  const auto first = reinterpret_cast<std::uintptr_t>(entry.view.data);
  if (holds(found, first, first + static_cast<ByteCount>(boxes.local_end()) * item_bytes)) return {};
  bool all = true;  // of what lies in it: what is in between may be out of reach
  Footprint(entry.view.data, boxes, item_bytes).each_run([&](Footprint::Range run) {
    all = all && holds(found, run.first, run.end);
  });
  if (all) return {};
  return fmt::format("ends outside of the allocation of {} bytes on device {}: give memory as large as the layout says",
                     found.bytes, found.device);
}

}  // namespace

TensorPlaces places_of(const Catalog& catalog) {
  const auto& entries = catalog.entries();
  const auto named = std::ranges::find_if(entries, names_a_device);
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
    try {
      places[i] =
          found.runtime->find(entry.view.data, static_cast<ByteCount>(boxes.local_end()) * item_size(entry.spec.dtype));
    } catch (const Error& error) {
      // A driver that has failed knows nothing any more, and nobody has said that this is a device's.
      if (error.code() == ErrorCode::transport_failed && !names_a_device(entry)) continue;
      refuse(error.code(), entry, std::string("cannot be used: ") + error.what());
    }
    any = any || places[i];
    if (places[i]) {
      const std::string fault = fault_of(entry, *places[i], boxes);
      if (!fault.empty()) refuse(ErrorCode::invalid_argument, entry, fault);
    } else if (entry.view.kind == MemoryKind::cuda || entry.view.device >= 0) {
      refuse(ErrorCode::invalid_argument, entry,
             "is said to be a device's, and is not: it was freed, or never was one's");
    }
  }
  return any ? places : TensorPlaces{};
}

bool is_still_there(const memory::DeviceAllocation& allocation, const std::byte* data) {
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) return false;
  try {
    // As it was asked about: to the end of the same chunks.
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
