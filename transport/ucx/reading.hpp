// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/read_channel.hpp"

namespace shardwire::transport::ucx {

/// The NICs of this process that have proven to read by hardware from a serving context, one worker each. They serve no
/// peers. Peers are spread over them; each process starts with a different NIC.
class Reading {
 public:
  /// Opens each NIC and has it read a page of this process through `serving`. Bounded: 20 s. `with_cuda`: also read
  /// into device memory, whose devices `gpus` knows.
  Reading(const std::shared_ptr<Worker>& serving, bool with_cuda, const std::shared_ptr<GpuDirect>& gpus);

  /// True if there is a NIC: this process reads its peers, and lets them read.
  [[nodiscard]] bool possible() const { return !devices_.empty(); }
  /// Why there is none, or which requested ports are left out, and why.
  [[nodiscard]] const support::Fallback& why_not() const { return why_not_; }
  /// All NICs, those with the fewest peers first. A caller that keeps one adds a peer to it. Not every NIC reaches
  /// every peer.
  [[nodiscard]] std::vector<ReadingDevice> devices_for_peer() const;
  [[nodiscard]] const std::vector<ReadingDevice>& devices() const { return devices_; }

 private:
  std::vector<ReadingDevice> devices_;
  support::Fallback why_not_;
};

}  // namespace shardwire::transport::ucx
