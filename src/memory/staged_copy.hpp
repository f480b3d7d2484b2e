// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/types.hpp"

namespace shardwire::memory {

/// Copies between two places through one slot of pinned memory: one half fills the slot, the other empties it. A
/// device's half is work for its stream; the processor makes the host's half.
class StagedCopy {
 public:
  StagedCopy(int source_device, int target_device) : source_device_(source_device), target_device_(target_device) {}

  /// Appends one copy to `staged`, in as many parts as slots of this size require. Parts share a StagedCopy while they
  /// fit.
  static void append(const QueuedCopy& copy, ByteCount slot_bytes, std::vector<StagedCopy>& staged);

  /// Device of the half that fills or empties the slot; may be on_host.
  [[nodiscard]] int device(bool fills) const { return fills ? source_device_ : target_device_; }
  [[nodiscard]] std::vector<DeviceCopy> device_half(std::byte* slot, bool fills) const;
  void copy_host_half(std::byte* slot, bool fills, Stores stores) const;

 private:
  struct Part {
    StridedCopy copy;
    const std::byte* source;
    std::byte* target;
    ByteCount at;  // in the slot
  };

  int source_device_;
  int target_device_;
  std::vector<Part> parts_;
  ByteCount bytes_ = 0;
};

}  // namespace shardwire::memory
