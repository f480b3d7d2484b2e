// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "memory/device_copy/host_device.hpp"
#include "memory/device_copy/small_divisor.hpp"
#include "shardwire/box.hpp"

// A batch of strided copies in one block of bytes, as kernels read it. The block contains no pointers: the host builds
// it (memory/device_copy/copy_table.hpp) and uploads it unchanged. It can be reused for other memory with the same
// relative positions.
namespace shardwire::memory {

/// A copy is divided into tiles of at most about this many bytes, one per block of threads.
inline constexpr std::uint64_t tile_bytes = 32u << 10;

/// One dim around the runs of a copy.
struct TableDim {
  SmallDivisor count;
  std::uint64_t source_stride = 0;
  std::uint64_t target_stride = 0;
};
static_assert(std::has_unique_object_representations_v<TableDim>);

/// One copy. A tile has `tile_runs` whole runs, or one of the `run_parts` of a run.
struct TableCopy {
  std::uint64_t source = 0;  ///< of the first run, relative to the source base
  std::uint64_t target = 0;
  SmallDivisor run_bytes;
  std::uint64_t runs = 0;
  std::uint64_t part_bytes = 0;  ///< of a run, whole target lines except at its ends; 0: runs are not split
  std::uint64_t run_parts = 1;
  SmallDivisor run_slots;  ///< maximum per run or part
  std::uint32_t tile_runs = 1;
  std::uint32_t first_dim = 0;  ///< in the table
  std::uint16_t dims = 0;
  std::uint8_t unit_bytes = 0;    ///< bytes per slot, aligned on both sides; 0: an aligned 16 of the target
  std::uint8_t grain_bytes = 1;   ///< alignment of each run on both sides, and of its length; at most 16
  std::uint8_t source_grain = 1;  ///< the same for the source alone; at most 8
  std::uint8_t unused[3] = {};    ///< tables are compared bytewise
};
static_assert(std::has_unique_object_representations_v<TableCopy>);

/// Base addresses of a table's sources and targets. Both are multiples of base_alignment, so a table depends on
/// addresses only up to that alignment.
struct TableBases {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
};
inline constexpr std::uint64_t base_alignment = 256;

/// The contents of a block, and the addresses of block and copies. Kernels take it as an argument.
/// Ownership: borrows the block.
class TableView {
 public:
  struct Size {
    std::uint64_t copies = 0;
    std::uint64_t dims = 0;
    std::uint64_t tiles = 0;
    std::uint64_t leaves = 0;  ///< of the tree digests of all copies

    bool operator==(const Size&) const = default;
  };

  TableView() = default;
  /// Requires: `block` is aligned to 8 bytes.
  TableView(const Size& size, const std::byte* block, const TableBases& bases)
      : size_(size), block_(block), bases_(bases) {}

  /// Size of the whole block.
  [[nodiscard]] static std::uint64_t block_bytes(const Size& size) {
    return 2 * prefix_bytes(size) + size.copies * sizeof(TableCopy) + size.dims * sizeof(TableDim);
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const Size& size() const { return size_; }
  /// Number of tiles before each copy; one entry per copy, and one more.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const std::uint64_t* first_tiles() const {
    return reinterpret_cast<const std::uint64_t*>(block_);
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const std::uint64_t* first_leaves() const {
    return reinterpret_cast<const std::uint64_t*>(block_ + prefix_bytes(size_));
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const TableCopy* copies() const {
    return reinterpret_cast<const TableCopy*>(block_ + 2 * prefix_bytes(size_));
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const TableDim* dims() const {
    return reinterpret_cast<const TableDim*>(block_ + 2 * prefix_bytes(size_) + size_.copies * sizeof(TableCopy));
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE const std::byte* source_of(const TableCopy& copy) const {
    return bases_.source + copy.source;
  }
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::byte* target_of(const TableCopy& copy) const {
    return bases_.target + copy.target;
  }

 private:
  [[nodiscard]] SHARDWIRE_HOST_DEVICE static std::uint64_t prefix_bytes(const Size& size) {
    return (size.copies + 1) * sizeof(std::uint64_t);
  }

  Size size_;
  const std::byte* block_ = nullptr;
  TableBases bases_;
};

/// The copy that contains item `number`, given the sums before each copy. Requires: it exists and is not before `from`.
/// Fast if it is close to `from`.
SHARDWIRE_HOST_DEVICE inline std::uint64_t find_copy(const std::uint64_t* firsts, std::uint64_t copies,
                                                     std::uint64_t number, std::uint64_t from = 0) {
  std::uint64_t step = 1;
  while (copies - from > step && firsts[from + step] <= number) {
    from += step;
    step *= 2;
  }
  std::uint64_t end = copies - from > step ? from + step : copies;  // begins later, if there is one
  while (end - from > 1) {
    const std::uint64_t middle = from + (end - from) / 2;
    if (firsts[middle] <= number) {
      from = middle;
    } else {
      end = middle;
    }
  }
  return from;
}

/// Byte offsets from the first run of a copy to another run.
struct RunOffset {
  std::uint64_t source = 0;
  std::uint64_t target = 0;
};

/// The position of a run among the runs of a copy: found by division once, and without division for the following runs.
/// Holds the table entries that it needs, so that a block of threads can keep it in shared memory.
class RunPosition {
 public:
  SHARDWIRE_HOST_DEVICE void find(const TableView& table, const TableCopy& copy, std::uint64_t run) {
    const TableDim* const dims = table.dims() + copy.first_dim;
    count_ = copy.dims;
    SHARDWIRE_NO_UNROLL
    for (unsigned dim = count_; dim-- > 0;) {
      const std::uint64_t count = dims[dim].count.value();
      const std::uint64_t outer = dim > 0 ? run / count : 0;
      dims_[dim].count = dims[dim].count;
      dims_[dim].source_stride = dims[dim].source_stride;
      dims_[dim].target_stride = dims[dim].target_stride;
      index_[dim] = run - outer * count;
      run = outer;
    }
  }
  /// Offset of the run that is `next` runs later. Requires: next <= SmallDivisor::max_excess, and that run exists.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE RunOffset offset(std::uint64_t next) const {
    RunOffset result;
    SHARDWIRE_NO_UNROLL
    for (unsigned dim = count_; dim-- > 0;) {
      std::uint64_t at = index_[dim] + next;
      if (dim > 0) {
        next = dims_[dim].count.quotient(at);
        at -= next * dims_[dim].count.value();
      }
      result.source += at * dims_[dim].source_stride;
      result.target += at * dims_[dim].target_stride;
    }
    return result;
  }

 private:
  unsigned count_ = 0;
  std::uint64_t index_[max_dims] = {};
  TableDim dims_[max_dims] = {};
};

}  // namespace shardwire::memory
