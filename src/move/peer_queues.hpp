// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <vector>

#include "move/method.hpp"

namespace shardwire::move {

/// Waiting transfers by peer, split into parts as late as possible. Peers are served in turn, so that none waits for
/// another peer's bytes.
class PeerQueues {
 public:
  /// Adds the boxes to the list.
  using Split = std::function<void(const Transfer&, ByteCount limit_bytes, std::vector<Box>&)>;

  explicit PeerQueues(Split split) : split_(std::move(split)) {}

  /// Maximum bytes of one part, and of one take(). Requires: called before transfers of that peer are added.
  void limit(std::uint32_t peer, ByteCount bytes);
  [[nodiscard]] ByteCount limit_of(std::uint32_t peer) const { return queues_.at(peer).limit_bytes; }
  /// Requires: the transfer outlives this queue and the parts taken from it.
  void add(const Transfer& transfer);

  /// Calls post(peer) for one peer after the other, starting after the last one served, until one returns true.
  template <typename Post>
  bool next(Post post) {
    for (std::size_t tried = 0; tried < queues_.size(); ++tried) {
      const std::size_t peer = turn_;
      turn_ = (turn_ + 1) % queues_.size();
      if (post(static_cast<std::uint32_t>(peer))) return true;
    }
    return false;
  }
  /// The parts at the front of a peer's queue that fit its limit and may travel with the first: their number and bytes.
  /// At least one if there is any.
  struct Fitting {
    std::size_t parts = 0;
    ByteCount bytes = 0;
  };
  /// `fits(part)`: whether it may be included; called in order; the first part is always included.
  template <typename Fits>
  Fitting fitting(std::uint32_t peer, std::size_t max_parts, Fits fits);
  Fitting fitting(std::uint32_t peer, std::size_t max_parts) {
    return fitting(peer, max_parts, [](const TransferPart&) { return true; });
  }
  /// Requires: fitting() found one.
  [[nodiscard]] const TransferPart& front(std::uint32_t peer) const { return queues_[peer].parts.front(); }
  /// Whether the predicate holds for one of the first parts. Requires: fitting() found as many.
  template <typename Holds>
  [[nodiscard]] bool any_of(std::uint32_t peer, std::size_t parts, Holds holds) const {
    const auto first = queues_[peer].parts.begin();
    return std::any_of(first, first + static_cast<std::ptrdiff_t>(parts), holds);
  }
  std::vector<TransferPart> take(std::uint32_t peer, std::size_t parts);
  /// Removes and returns everything that waits for a peer.
  std::vector<TransferPart> take_all(std::uint32_t peer);

 private:
  struct Queue {
    ByteCount limit_bytes = 0;
    std::deque<const Transfer*> transfers;
    std::deque<TransferPart> parts;
  };
  bool refill(Queue& queue);
  /// Creates the first part, if there is any.
  void prepare(Queue& queue) {
    while (queue.parts.empty() && refill(queue)) {
    }
  }

  Split split_;
  std::vector<Queue> queues_;
  std::vector<Box> boxes_;  // scratch: boxes of the transfer being split
  std::size_t turn_ = 0;
};

template <typename Fits>
PeerQueues::Fitting PeerQueues::fitting(std::uint32_t peer, std::size_t max_parts, Fits fits) {
  Queue& queue = queues_[peer];
  prepare(queue);
  Fitting result;
  while (result.parts < queue.parts.size() && result.parts < max_parts) {
    const TransferPart& next = queue.parts[result.parts];
    const bool first = result.parts == 0;
    if (!fits(next) && !first) break;
    if (!first && result.bytes + next.bytes() > queue.limit_bytes) break;
    result.bytes += next.bytes();
    if (++result.parts == queue.parts.size()) refill(queue);
  }
  return result;
}

}  // namespace shardwire::move
