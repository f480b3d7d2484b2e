// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

#include "support/descriptors.hpp"
#include "transport/ucx/handles.hpp"

namespace shardwire::transport::ucx {

/// Equal for processes that can map each other's memory: same kernel, namespaces, user and /dev/shm.
std::uint64_t host_identity();

/// A process, told apart from a later one with the same number.
struct ProcessId {
  std::int64_t pid = 0;
  std::uint64_t start_time = 0;
};
ProcessId this_process();

/// In shared memory, mapped by every peer on the host: shows that mapping works, and that the fabric is still open.
struct Beacon {
  static constexpr std::uint64_t expected_magic = 0x6e6f636165627773ULL;
  std::uint64_t magic = expected_magic;
  std::uint64_t fabric = 0;
  std::atomic<std::uint32_t> open = 1;
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "the beacon is read by other processes");

/// Notices that a process on this host has ended, also while it is a zombie.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  explicit ProcessWatch(ProcessId process);
  [[nodiscard]] bool gone() const;
  /// Becomes readable when the process ends; -1 where the kernel has no such thing.
  [[nodiscard]] int descriptor() const { return descriptor_.get(); }

 private:
  ProcessId process_;
  support::Descriptor descriptor_;
};

/// Whether the byte can be loaded without a fault: a mapping may be longer than the memory behind it.
bool is_readable(const std::byte* byte);

}  // namespace shardwire::transport::ucx
