// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
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

  static constexpr int nowhere = std::numeric_limits<int>::min();  ///< of members that are not in the group
  struct Setup {
    std::string_view collective;  ///< its name. Ownership: borrowed
    int member = 0;
    std::vector<int> devices;  ///< by member: where memory lies that it moves: a device, memory::on_host or nowhere
    /// Whether bytes go in rounds depends on what the restores of all members find out; else all that can does.
    bool undecided = false;
  };
  explicit GroupedHandover(Setup setup) : setup_(std::move(setup)) {}
  [[nodiscard]] std::string_view collective() const { return setup_.collective; }
  /// Whether it moves from memory of `source` to memory of this member.
  [[nodiscard]] bool carries(int source, int source_device, int target_device) const {
    return device_of(source) == source_device && device_of(setup_.member) == target_device;
  }
  [[nodiscard]] int device_of(int member) const {
    const auto index = static_cast<std::size_t>(member);
    return index < setup_.devices.size() ? setup_.devices[index] : nowhere;
  }
  [[nodiscard]] bool undecided() const { return setup_.undecided; }

  // --- of the restore ---

  /// Where it is undecided: that some bytes have no direct path, or that all have one. `decided` runs once decide() was called
  /// and the caller of that has come to the session's thread with run_decided().
  void ask(bool indirect, std::function<void(bool in_rounds)> decided) {
    const std::lock_guard lock(mutex_);
    indirect_ = indirect;
    decided_ = std::move(decided);
    changed_.notify_all();
  }
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
  void run_decided() {
    std::function<void(bool)> decided;
    bool in_rounds = false;
    {
      const std::lock_guard lock(mutex_);
      decided = std::exchange(decided_, nullptr);
      in_rounds = in_rounds_;
    }
    if (decided) decided(in_rounds);
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

  /// What was asked; empty when the restore has ended without that, or at the deadline.
  [[nodiscard]] std::optional<bool> wait_for_paths(Clock::time_point until) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, until, [this] { return indirect_ || stopped_; });
    return indirect_;
  }
  void decide(bool in_rounds) {
    const std::lock_guard lock(mutex_);
    in_rounds_ = in_rounds;
  }
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
  Setup setup_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::optional<bool> indirect_;
  std::function<void(bool)> decided_;
  bool in_rounds_ = false;
  std::optional<std::vector<Item>> items_;
  std::function<void(bool)> closed_;
  bool stopped_ = false;
  bool writing_ = false;
  bool brought_ = false;
};

}  // namespace shardwire
