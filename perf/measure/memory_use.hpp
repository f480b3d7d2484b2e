// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <thread>

#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Samples the memory of this process during its lifetime. Costs some processor time: do not use it while a clock runs.
class MemoryWatch {
 public:
  MemoryWatch();
  ~MemoryWatch();
  MemoryWatch(const MemoryWatch&) = delete;
  MemoryWatch& operator=(const MemoryWatch&) = delete;

  struct Peak {
    ByteCount anonymous = 0;  ///< private pages: heap, staging, stacks
    ByteCount shared = 0;     ///< resident pages of shared mappings, of this process and of others
  };
  [[nodiscard]] Peak peak() const { return {anonymous_, shared_}; }

 private:
  void look();

  std::atomic<ByteCount> anonymous_{0};
  std::atomic<ByteCount> shared_{0};
  std::jthread thread_;
};

/// True if `data` lies in a mapping that other processes can share; its pages are then not anonymous.
bool lies_in_shared_mapping(const void* data);

}  // namespace shardwire::perf
