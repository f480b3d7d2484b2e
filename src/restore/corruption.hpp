// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "plan/replan.hpp"
#include "shardwire/report.hpp"

namespace shardwire::restore {

/// A box that was not what its source published, and the wanted tensor that it belongs to.
struct FoundCorrupt {
  TensorId tensor{};
  Rank holder{};  ///< of the plan's `from` side
  CorruptBox box;
};

/// Which holders are no longer read, since their memory is not what they published, over all runs of one restore. Pure, apart
/// from what it remembers.
/// Threads: loop thread only.
class Corruption {
 public:
  /// A holder of which a tensor has differed in so many runs is no longer read for it.
  static constexpr int max_runs = 2;

  /// What one run has found.
  void add(std::span<const FoundCorrupt> found);
  /// The holders that are no longer read, by wanted tensor.
  [[nodiscard]] const CorruptHolders& holders() const { return holders_; }

 private:
  std::map<std::pair<TensorId, Rank>, int> runs_;  // in which it differed
  CorruptHolders holders_;
};

}  // namespace shardwire::restore
