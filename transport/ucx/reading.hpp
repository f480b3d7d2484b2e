// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/read_channel.hpp"

namespace shardwire::transport::ucx {

/// The NICs of this process that have proven to read by hardware what a serving context gives access to, one worker each. They
/// serve nobody. Peers are spread over them, beginning with another one in each process.
class Reading {
 public:
  /// Opens each and has it read a page of this process through `serving`. Bounded: 20 s.
  /// `with_cuda`: so that they can read into memory of devices, of which `gpus` knows.
  Reading(const std::shared_ptr<Worker>& serving, bool with_cuda, const std::shared_ptr<GpuDirect>& gpus);

  /// There is one: this process reads its peers, and lets them read.
  [[nodiscard]] bool possible() const { return !devices_.empty(); }
  /// Otherwise, for people; or which ports are left out of those that were asked for, and why.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// All, those with the fewest peers first; who keeps one is a peer more of it. Not each reaches each peer.
  [[nodiscard]] std::vector<ReadingDevice> devices_for_peer() const;
  [[nodiscard]] const std::vector<ReadingDevice>& devices() const { return devices_; }

 private:
  std::vector<ReadingDevice> devices_;
  std::string why_not_;
};

}  // namespace shardwire::transport::ucx
