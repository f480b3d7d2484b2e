// SPDX-License-Identifier: Apache-2.0
#include "memory/device_copy/copy_table.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "memory/device_copy/copy_tile.hpp"
#include "memory/tree_digest.hpp"

namespace shardwire::memory {

namespace {

// Shorter runs consist mostly of unaligned ends: they are copied in units of their common alignment.
constexpr ByteCount min_vector_run_bytes = 64;

constexpr std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}

// The largest power of two that divides `all`, up to `most`.
std::uint8_t common_alignment(std::uint64_t all, std::uint64_t most) {
  const std::uint64_t bits = all | most;
  return static_cast<std::uint8_t>(bits & (~bits + 1));
}

std::uint64_t address_of(const std::byte* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

// Rounds the lowest addresses down to the base alignment.
TableBases bases_of(std::span<const DeviceCopy> copies) {
  std::uint64_t source = ~std::uint64_t{0};
  std::uint64_t target = ~std::uint64_t{0};
  for (const DeviceCopy& next : copies) {
    if (next.copy.bytes() == 0) continue;
    source = std::min(source, address_of(next.source) + next.copy.source_span().first);
    target = std::min(target, address_of(next.target) + next.copy.target_span().first);
  }
  const auto aligned = [](std::uint64_t address) { return address / base_alignment * base_alignment; };
  return {reinterpret_cast<const std::byte*>(aligned(source)), reinterpret_cast<std::byte*>(aligned(target))};
}

void split_into_tiles(TableCopy& copy) {
  const std::uint64_t run = copy.run_bytes.value();
  std::uint64_t piece = run;
  if (run > tile_bytes) {
    // Parts of equal length: a short last part would occupy a block as long as the others.
    const std::uint64_t reach = run + detail::tile_line_bytes - 1;  // from the beginning of the first line
    const std::uint64_t parts = divided_up(reach, tile_bytes);
    copy.part_bytes = divided_up(divided_up(reach, parts), detail::tile_line_bytes) * detail::tile_line_bytes;
    copy.run_parts = divided_up(reach, copy.part_bytes);
    piece = copy.part_bytes;
  } else {
    copy.tile_runs = static_cast<std::uint32_t>(std::min(copy.runs, tile_bytes / run));
  }
  if (copy.grain_bytes == sizeof(Vector16) || run < min_vector_run_bytes) copy.unit_bytes = copy.grain_bytes;
  // An unaligned run begins before the first whole 16 bytes of the target and ends after the last.
  copy.run_slots = SmallDivisor(copy.unit_bytes > 0 ? divided_up(piece, copy.unit_bytes)
                                                    : divided_up(piece + sizeof(Vector16) - 1, sizeof(Vector16)));
}

std::uint64_t tiles_of(const TableCopy& copy) {
  return copy.part_bytes > 0 ? copy.runs * copy.run_parts : divided_up(copy.runs, copy.tile_runs);
}

}  // namespace

CopyTable::CopyTable(std::span<const DeviceCopy> copies) : bases_(bases_of(copies)) {
  std::vector<std::uint64_t> first_tiles{0};
  std::vector<std::uint64_t> first_leaves{0};
  std::vector<TableCopy> rows;
  std::vector<TableDim> dims;
  first_tiles.reserve(copies.size() + 1);
  first_leaves.reserve(copies.size() + 1);
  rows.reserve(copies.size());
  for (const DeviceCopy& next : copies) {
    TableCopy row;
    if (next.copy.bytes() > 0) {
      row.source = address_of(next.source) + next.copy.source_span().first - address_of(bases_.source);
      row.target = address_of(next.target) + next.copy.target_span().first - address_of(bases_.target);
      row.run_bytes = SmallDivisor(next.copy.run_bytes());
      row.runs = next.copy.runs();
      row.first_dim = static_cast<std::uint32_t>(dims.size());
      row.dims = static_cast<std::uint16_t>(next.copy.outer_dims());
      std::uint64_t source_bits = row.source | next.copy.run_bytes();
      std::uint64_t target_bits = row.target;
      for (std::size_t dim = 0; dim < row.dims; ++dim) {
        const StridedCopy::Dim around = next.copy.outer_dim(dim);
        dims.push_back({SmallDivisor(around.count), around.source_stride, around.target_stride});
        source_bits |= around.source_stride;
        target_bits |= around.target_stride;
      }
      row.source_grain = common_alignment(source_bits, sizeof(std::uint64_t));
      row.grain_bytes = common_alignment(source_bits | target_bits, sizeof(Vector16));
      split_into_tiles(row);
    }
    rows.push_back(row);
    first_tiles.push_back(first_tiles.back() + (row.runs > 0 ? tiles_of(row) : 0));
    first_leaves.push_back(first_leaves.back() + leaves_of(next.copy.bytes()));
  }
  size_ = {rows.size(), dims.size(), first_tiles.back(), first_leaves.back()};
  block_.reserve(TableView::block_bytes(size_));
  const auto append = [&](const auto& list) {
    const auto bytes = std::as_bytes(std::span(list));
    block_.insert(block_.end(), bytes.begin(), bytes.end());
  };
  append(first_tiles);
  append(first_leaves);
  append(rows);
  append(dims);
}

}  // namespace shardwire::memory
