// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {

/// The NICs of this process that have proven to read by hardware what a serving context gives access to, one worker each. They
/// serve nobody. Peers are spread over them.
class Reading {
 public:
  /// Opens each and has it read a page of this process through `serving`. Bounded: some seconds for each at most.
  explicit Reading(const std::shared_ptr<Worker>& serving);

  /// There is one: this process reads its peers, and lets them read.
  [[nodiscard]] bool possible() const { return !devices_.empty(); }
  /// Otherwise, for people.
  [[nodiscard]] const std::string& why_not() const { return why_not_; }
  /// Of the NIC that has the fewest peers; it counts as one as long as the caller keeps it. Requires: possible().
  [[nodiscard]] std::shared_ptr<Worker> worker_for_peer() const;
  /// All of them.
  [[nodiscard]] const std::vector<std::shared_ptr<Worker>>& workers() const { return devices_; }

 private:
  std::vector<std::shared_ptr<Worker>> devices_;
  std::string why_not_;
};

}  // namespace shardwire::transport::ucx
