// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <thread>

#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Watches how much memory this process has while it lives. Costs some processor time: not while a clock runs.
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

/// True when `data` lies in a mapping that other processes can share; its pages are then no anonymous ones.
bool lies_in_shared_mapping(const void* data);

}  // namespace shardwire::perf
