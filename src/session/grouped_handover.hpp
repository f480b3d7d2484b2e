// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "move/grouped.hpp"

namespace shardwire {

/// What a restore leaves to rounds of which all members of an exchange take part: between the session's thread, where the
/// restore lives, and that of the exchange, which drives the rounds.
class GroupedHandover {
 public:
  using Clock = std::chrono::steady_clock;

  /// A piece that comes from another member.
  struct Item {
    int member = 0;
    std::uint32_t held_tensor = 0;  ///< in that member's manifest
    ByteCount run_bytes = 0;
    move::GroupedPiece piece;
  };

  /// `collective`: its name. Ownership: borrowed.
  explicit GroupedHandover(std::string_view collective) : collective_(collective) {}
  [[nodiscard]] std::string_view collective() const { return collective_; }

  // --- of the restore ---

  /// All that is to come in rounds. `closed` runs when close() was called and the caller of that has come to the session's
  /// thread with run_closed().
  void offer(std::vector<Item> items, std::function<void(bool brought)> closed) {
    const std::lock_guard lock(mutex_);
    items_ = std::move(items);
    closed_ = std::move(closed);
    changed_.notify_all();
  }
  /// The restore is over, or goes no further: rounds that write for it are to end.
  void stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }
  /// The rounds may be writing into the destination.
  [[nodiscard]] bool writing() const {
    const std::lock_guard lock(mutex_);
    return writing_;
  }
  void run_closed() {
    std::function<void(bool)> closed;
    bool brought = false;
    {
      const std::lock_guard lock(mutex_);
      closed = closed_;
      brought = brought_;
    }
    if (closed) closed(brought);
  }

  // --- of the exchange ---

  /// What was offered; empty when the restore has ended without that, or at the deadline.
  [[nodiscard]] std::optional<std::vector<Item>> wait(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return items_ || stopped_; });
    return items_;
  }
  [[nodiscard]] bool stopped() const {
    const std::lock_guard lock(mutex_);
    return stopped_;
  }
  /// From now on until close() the destination is written to. False: the restore has ended meanwhile.
  bool begin() {
    const std::lock_guard lock(mutex_);
    writing_ = !stopped_;
    return writing_;
  }
  void close(bool brought) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    brought_ = brought;
  }

 private:
  std::string_view collective_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<std::vector<Item>> items_;
  std::function<void(bool)> closed_;
  bool stopped_ = false;
  bool writing_ = false;
  bool brought_ = false;
};

}  // namespace shardwire
