// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

namespace shardwire::memory {

/// The readable and writable parts of this process's address space, as of the first query. A later unmapping is not
/// noticed.
/// Cost: one system call per queried mapping. Before Linux 6.11, and for many queries, all of /proc/self/maps is read
///       once; then O(log mappings) per query. If that file cannot be read, everything counts as accessible.
/// Threads: one at a time.
class AddressSpace {
 public:
  AddressSpace();

  [[nodiscard]] bool readable(const void* data, ByteCount bytes) { return covers(Access::read, data, bytes); }
  /// Writable and readable.
  [[nodiscard]] bool writable(const void* data, ByteCount bytes) { return covers(Access::write, data, bytes); }

 private:
  enum class Access : std::uint8_t { read, write };
  struct Range {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
  };
  using Ranges = std::vector<Range>;  // ascending

  static Ranges::iterator first_after(Ranges& ranges, std::uintptr_t address);

  [[nodiscard]] bool covers(Access access, const void* data, ByteCount bytes);
  [[nodiscard]] std::uintptr_t known_end(Access access, std::uintptr_t address);
  [[nodiscard]] std::optional<Range> mapping_at(std::uintptr_t address, Access access) const;
  void read_all();
  void add(Access access, const Range& range);

  support::Descriptor maps_;
  bool known_;
  bool all_read_ = false;
  unsigned asked_ = 0;
  std::array<Ranges, 2> ranges_;  // by access
};

}  // namespace shardwire::memory
