// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::memory {

/// What of this process's address space can be loaded from and stored to, as it is when this is made. Memory that a later
/// unmapping takes away is not noticed.
/// Cost: reads /proc/self/maps once; O(log mappings) for each question. Where that file cannot be read, all counts as
/// accessible.
class AddressSpace {
 public:
  AddressSpace();

  [[nodiscard]] bool readable(const void* data, ByteCount bytes) const { return covers(readable_, data, bytes); }
  /// And readable.
  [[nodiscard]] bool writable(const void* data, ByteCount bytes) const { return covers(writable_, data, bytes); }

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };
  static void add(std::vector<Range>& ranges, const Range& range);
  [[nodiscard]] bool covers(const std::vector<Range>& ranges, const void* data, ByteCount bytes) const;

  bool known_ = false;
  std::vector<Range> readable_;  // ascending; adjacent ones are one
  std::vector<Range> writable_;
};

}  // namespace shardwire::memory
