// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "memory/device.hpp"
#include "memory/device_copy/table.hpp"

namespace shardwire::memory {

/// The table of a batch.
class CopyTable {
 public:
  explicit CopyTable(std::span<const DeviceCopy> copies);

  /// The bytes to upload: the same for all copies with these relative positions, wherever they lie.
  [[nodiscard]] std::span<const std::byte> bytes() const { return block_; }
  [[nodiscard]] const TableView::Size& size() const { return size_; }
  /// The table after its bytes were copied there. Requires: aligned to 8 bytes.
  [[nodiscard]] TableView view(const std::byte* block) const { return {size_, block, bases_}; }
  [[nodiscard]] TableView view() const { return view(block_.data()); }

 private:
  TableView::Size size_;
  TableBases bases_;
  std::vector<std::byte> block_;
};

}  // namespace shardwire::memory
