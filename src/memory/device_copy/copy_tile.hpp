// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/device_copy/host_device.hpp"
#include "memory/device_copy/table.hpp"

namespace shardwire::memory {

/// The unit of work of a block of threads: some runs of a copy, or a part of one. One of its threads finds it by
/// division; the others only multiply.
struct Tile {
  const std::byte* source = nullptr;  ///< of the copy's first run, or of the same part of it
  std::byte* target = nullptr;
  RunPosition first;
  SmallDivisor run_slots;
  std::uint32_t runs = 0;
  std::uint32_t bytes = 0;  ///< of each run
  std::uint32_t slots = 0;
  std::uint8_t unit_bytes = 0;  ///< as in TableCopy, this and the next
  std::uint8_t grain_bytes = 1;
};

namespace detail {

// Tiles do not share target lines of this size.
inline constexpr std::uint64_t tile_line_bytes = 128;

SHARDWIRE_HOST_DEVICE inline std::uint64_t misalignment(const std::byte* address, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(address) % alignment;
}

SHARDWIRE_HOST_DEVICE inline void take_part(Tile& tile, const TableView& table, const TableCopy& copy,
                                            std::uint64_t number) {
  const std::uint64_t run = number / copy.run_parts;
  const std::uint64_t part = number - run * copy.run_parts;
  tile.first.find(table, copy, run);
  const std::uint64_t shift = misalignment(table.target_of(copy) + tile.first.offset(0).target, tile_line_bytes);
  const std::uint64_t begin = part == 0 ? 0 : part * copy.part_bytes - shift;
  const std::uint64_t wanted_end = (part + 1) * copy.part_bytes - shift;
  const std::uint64_t end = wanted_end < copy.run_bytes.value() ? wanted_end : copy.run_bytes.value();
  tile.runs = begin < end ? 1 : 0;
  tile.bytes = begin < end ? static_cast<std::uint32_t>(end - begin) : 0;
  tile.source = table.source_of(copy) + begin;
  tile.target = table.target_of(copy) + begin;
}

SHARDWIRE_HOST_DEVICE inline void take_runs(Tile& tile, const TableView& table, const TableCopy& copy,
                                            std::uint64_t number) {
  const std::uint64_t run = number * copy.tile_runs;
  const std::uint64_t left = copy.runs - run;
  tile.first.find(table, copy, run);
  tile.runs = left < copy.tile_runs ? static_cast<std::uint32_t>(left) : copy.tile_runs;
  tile.bytes = static_cast<std::uint32_t>(copy.run_bytes.value());
  tile.source = table.source_of(copy);
  tile.target = table.target_of(copy);
}

}  // namespace detail

/// Tile `number` of the table. `copy` is the copy of an earlier tile, and becomes the copy of this one. Requires: it
/// exists.
SHARDWIRE_HOST_DEVICE inline void find_tile(const TableView& table, std::uint64_t number, std::uint64_t& copy,
                                            Tile& tile) {
  copy = find_copy(table.first_tiles(), table.size().copies, number, copy);
  const TableCopy& row = table.copies()[copy];
  const std::uint64_t within = number - table.first_tiles()[copy];
  if (row.part_bytes > 0) {
    detail::take_part(tile, table, row, within);
  } else {
    detail::take_runs(tile, table, row, within);
  }
  tile.run_slots = row.run_slots;
  tile.slots = tile.runs * static_cast<std::uint32_t>(row.run_slots.value());
  tile.unit_bytes = row.unit_bytes;
  tile.grain_bytes = row.grain_bytes;
}

namespace detail {

/// A slot of a tile: a unit of a run, or the run's part of an aligned 16 bytes of the target.
struct Slot {
  const std::byte* source = nullptr;  ///< of the run
  std::byte* target = nullptr;
  std::uint32_t number = 0;  ///< in the run
};

SHARDWIRE_HOST_DEVICE inline Slot find_slot(const Tile& tile, std::uint32_t number) {
  const auto run = static_cast<std::uint32_t>(tile.run_slots.quotient(number));
  const RunOffset offset = tile.first.offset(run);
  return {tile.source + offset.source, tile.target + offset.target,
          number - run * static_cast<std::uint32_t>(tile.run_slots.value())};
}

template <typename Unit>
SHARDWIRE_HOST_DEVICE inline void copy_units(const Tile& tile, std::uint32_t thread, std::uint32_t threads) {
  // All loads come before the first store.
  constexpr unsigned in_flight = 4;
  for (std::uint32_t first = thread; first < tile.slots; first += in_flight * threads) {
    Unit values[in_flight];
    std::byte* targets[in_flight];
    SHARDWIRE_UNROLL
    for (unsigned i = 0; i < in_flight; ++i) {
      targets[i] = nullptr;
      const std::uint32_t number = first + i * threads;
      if (number >= tile.slots) continue;
      const Slot slot = find_slot(tile, number);
      const std::uint32_t at = slot.number * static_cast<std::uint32_t>(sizeof(Unit));
      if (at >= tile.bytes) continue;  // the last part of a run is shorter
      values[i] = load<Unit>(slot.source + at);
      targets[i] = slot.target + at;
    }
    SHARDWIRE_UNROLL
    for (unsigned i = 0; i < in_flight; ++i) {
      if (targets[i] != nullptr) store(targets[i], values[i]);
    }
  }
}

template <typename Unit>
SHARDWIRE_HOST_DEVICE inline void copy_few(const std::byte* source, std::byte* target, std::uint32_t bytes) {
  for (std::uint32_t at = 0; at < bytes; at += sizeof(Unit)) store(target + at, load<Unit>(source + at));
}

/// For less than 16 bytes of the target, or with too few surrounding bytes in the source.
SHARDWIRE_HOST_DEVICE inline void copy_end(unsigned grain, const std::byte* source, std::byte* target,
                                           std::uint32_t bytes) {
  switch (grain) {
    case 8: return copy_few<std::uint64_t>(source, target, bytes);
    case 4: return copy_few<std::uint32_t>(source, target, bytes);
    case 2: return copy_few<std::uint16_t>(source, target, bytes);
    default: return copy_few<std::uint8_t>(source, target, bytes);
  }
}

/// The 16 bytes that begin `shift` bytes into two consecutive vectors. Requires: 0 < shift < 16.
SHARDWIRE_HOST_DEVICE inline Vector16 shifted(const Vector16& first, const Vector16& second, unsigned shift) {
  const bool upper = shift >= 8;
  const std::uint64_t a = upper ? first.high : first.low;
  const std::uint64_t b = upper ? second.low : first.high;
  const std::uint64_t c = upper ? second.high : second.low;
  const unsigned bits = 8 * (shift % 8);
  // Two shifts, since a shift by 64 bits is undefined.
  return {(a >> bits) | ((b << 1) << (63 - bits)), (b >> bits) | ((c << 1) << (63 - bits))};
}

/// Slots are whole 16 bytes of the target where the run covers them; the source is loaded aligned, and shifted. Nothing
/// outside the run is loaded: adjacent memory may belong to another owner.
SHARDWIRE_HOST_DEVICE inline void copy_vectors(const Tile& tile, std::uint32_t thread, std::uint32_t threads) {
  constexpr unsigned in_flight = 2;
  constexpr std::uint32_t size = sizeof(Vector16);
  for (std::uint32_t first = thread; first < tile.slots; first += in_flight * threads) {
    Vector16 values[in_flight];
    Vector16 next[in_flight];
    std::byte* targets[in_flight];
    unsigned shifts[in_flight];
    SHARDWIRE_UNROLL
    for (unsigned i = 0; i < in_flight; ++i) {
      targets[i] = nullptr;
      shifts[i] = 0;
      const std::uint32_t number = first + i * threads;
      if (number >= tile.slots) continue;
      const Slot slot = find_slot(tile, number);
      // The part [begin, end) of the run inside the aligned 16 bytes.
      const auto before = static_cast<std::uint32_t>(misalignment(slot.target, size));
      const std::uint32_t begin = slot.number == 0 ? 0 : slot.number * size - before;
      std::uint32_t end = (slot.number + 1) * size - before;
      if (end > tile.bytes) end = tile.bytes;
      if (begin >= end) continue;
      const std::byte* const source = slot.source + begin;
      const auto shift = static_cast<unsigned>(misalignment(source, size));
      const bool inside = shift == 0 || (begin >= shift && begin - shift + 2 * size <= tile.bytes);
      if (end - begin < size || !inside) {
        copy_end(tile.grain_bytes, source, slot.target + begin, end - begin);
        continue;
      }
      values[i] = load<Vector16>(source - shift);
      if (shift > 0) next[i] = load<Vector16>(source - shift + size);
      shifts[i] = shift;
      targets[i] = slot.target + begin;
    }
    SHARDWIRE_UNROLL
    for (unsigned i = 0; i < in_flight; ++i) {
      if (targets[i] == nullptr) continue;
      store(targets[i], shifts[i] == 0 ? values[i] : shifted(values[i], next[i], shifts[i]));
    }
  }
}

}  // namespace detail

/// Thread `thread` of `threads` copies its share of the tile; shares are disjoint and in any order.
SHARDWIRE_HOST_DEVICE inline void copy_tile(const Tile& tile, std::uint32_t thread, std::uint32_t threads) {
  switch (tile.unit_bytes) {
    case 16: return detail::copy_units<Vector16>(tile, thread, threads);
    case 8: return detail::copy_units<std::uint64_t>(tile, thread, threads);
    case 4: return detail::copy_units<std::uint32_t>(tile, thread, threads);
    case 2: return detail::copy_units<std::uint16_t>(tile, thread, threads);
    case 1: return detail::copy_units<std::uint8_t>(tile, thread, threads);
    default: return detail::copy_vectors(tile, thread, threads);
  }
}

}  // namespace shardwire::memory
