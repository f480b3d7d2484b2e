// SPDX-License-Identifier: Apache-2.0
#include "catalog/memory_check.hpp"

#include <fmt/core.h>

#include "catalog/description.hpp"
#include "geometry/footprint.hpp"
#include "memory/address_space.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire {

namespace {

using Accessible = bool (memory::AddressSpace::*)(const void*, ByteCount);

// Checks elements only: gaps of a strided view may be unmapped.
bool elements_are(memory::AddressSpace& space, Accessible accessible, const Footprint& footprint) {
  bool all = true;
  footprint.each_run([&](Footprint::Range run) {
    all = all && (space.*accessible)(reinterpret_cast<const void*>(run.first), run.end - run.first);
  });
  return all;
}

[[noreturn]] void refuse_memory(const TensorKey& key, Rank layout_rank, const void* data, const char* access) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: its memory on layout rank {}, at {}, is not mapped {}: give memory that the processor can "
                  "reach, and that is as large as the layout says",
                  to_string(key), to_int(layout_rank), data, access));
}

void require(const Catalog& catalog, const TensorPlaces& places, Accessible accessible, const char* access) {
  memory::AddressSpace space;
  BoxCache cache;
  for (std::size_t i = 0; i < catalog.entries().size(); ++i) {
    if (device_of(places, i) != memory::on_host) continue;
    const Catalog::Entry& entry = catalog.entries()[i];
    const PlacedBoxes& boxes = boxes_of(entry, catalog.layout_rank(), cache);
    const ByteCount item_bytes = item_size(entry.spec.dtype);
    if ((space.*accessible)(entry.view.data, static_cast<ByteCount>(boxes.local_end()) * item_bytes)) continue;
    if (elements_are(space, accessible, Footprint(entry.view.data, boxes, item_bytes))) continue;
    refuse_memory(entry.spec.key, catalog.layout_rank(), entry.view.data, access);
  }
}

}  // namespace

void require_readable(const Catalog& held, const TensorPlaces& places) {
  require(held, places, &memory::AddressSpace::readable, "readable");
}

void require_writable(const Catalog& wanted, const TensorPlaces& places) {
  for (const Catalog::Entry& entry : wanted.entries()) {
    if (!entry.view.read_only) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: its view on layout rank {} was made from const memory, which can be published but not "
                            "restored into",
                            to_string(entry.spec.key), to_int(wanted.layout_rank())));
  }
  require(wanted, places, &memory::AddressSpace::writable, "writable");
}

Registrable registrable(const View& view) {
  const auto refuse = [](const std::string& why, ErrorCode code = ErrorCode::invalid_argument) {
    throw Error(code, "registering memory: " + why);
  };
  if (!view.strides.empty()) refuse("the view has strides: give the whole range as a dense one");
  if (view.bytes < 0 && (view.elements < 0 || !view.dtype)) refuse("the view does not give the size of its memory");
  if (view.offset < 0) refuse("the view begins before its memory");
  const ByteCount item_bytes = view.dtype ? item_size(*view.dtype) : 1;
  const ByteCount bytes =
      view.bytes >= 0 ? static_cast<ByteCount>(view.bytes)
                      : support::multiply(static_cast<ByteCount>(view.elements), item_bytes, "the size of a view");
  auto* const first = static_cast<std::byte*>(view.data) + static_cast<ByteCount>(view.offset) * item_bytes;
  if (bytes == 0) refuse("there is none in the view");
  const TensorPlace place = place_of(view, first, bytes, [&](ErrorCode code, const std::string& why) {
    refuse(fmt::format("the {} bytes at {} {}", bytes, static_cast<const void*>(first), why), code);
  });
  if (place) return {{first, bytes, {MemoryKind::cuda, place->device}}, place};
  if (!memory::AddressSpace().readable(first, bytes)) {
    refuse(fmt::format("the {} bytes at {} are not mapped readable", bytes, static_cast<const void*>(first)));
  }
  return {{first, bytes, {}}};
}

}  // namespace shardwire
