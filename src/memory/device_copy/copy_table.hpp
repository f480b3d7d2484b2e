// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "memory/device.hpp"
#include "memory/device_copy/table.hpp"

namespace shardwire::memory {

/// Builds the table of a batch: once for a compiled plan, and uploaded once.
class CopyTable {
 public:
  explicit CopyTable(std::span<const DeviceCopy> copies);

  /// What is to be uploaded.
  [[nodiscard]] std::span<const std::byte> bytes() const { return block_; }
  [[nodiscard]] const TableView::Size& size() const { return size_; }
  /// The table where its bytes have been copied to. Requires: aligned to 8 bytes.
  [[nodiscard]] TableView view(const std::byte* block) const { return {size_, block}; }
  [[nodiscard]] TableView view() const { return view(block_.data()); }

 private:
  TableView::Size size_;
  std::vector<std::byte> block_;
};

}  // namespace shardwire::memory
