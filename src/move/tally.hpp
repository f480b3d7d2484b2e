// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "move/transfer.hpp"

namespace shardwire::move {

/// Bytes that have arrived so far, and the working time of each method.
class Tally {
 public:
  using Clock = std::chrono::steady_clock;

  void expect(const Transfer& transfer);
  void arrived(const Transfer& transfer, ByteCount bytes);
  /// Bytes of this transfer that its peer will not deliver. They stay expected until another transfer of the piece
  /// takes them over.
  void dropped(const Transfer& transfer, ByteCount bytes);
  /// Extra bytes that arrived and were not wanted.
  void beyond(const Transfer& transfer, ByteCount bytes);
  /// An operation of `method` begins or ends. A method is at work while at least one of its operations is.
  void began(Method method);
  void ended(Method method);

  [[nodiscard]] ByteCount expected_bytes() const { return expected_; }
  [[nodiscard]] ByteCount done_bytes() const { return done_; }
  /// Of the expected ones, those that their peers will not deliver and no other transfer has taken over.
  [[nodiscard]] ByteCount dropped_bytes() const { return dropped_in_all_; }
  [[nodiscard]] ByteCount extra_bytes() const { return extra_; }
  [[nodiscard]] ByteCount method_bytes(Method method) const { return by_method_[index(method)]; }
  [[nodiscard]] double method_seconds(Method method) const { return at_work_[index(method)].seconds; }
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer, Method method) const;
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer) const;
  /// Bytes that a peer still has to deliver.
  [[nodiscard]] ByteCount owed_bytes(std::uint32_t peer) const;
  /// Whether all bytes of this piece are in place.
  [[nodiscard]] bool complete(std::uint32_t piece) const;

 private:
  struct AtWork {
    int operations = 0;
    Clock::time_point since;
    double seconds = 0;
  };
  static std::size_t index(Method method) { return static_cast<std::size_t>(method); }

  ByteCount expected_ = 0;
  ByteCount done_ = 0;
  ByteCount extra_ = 0;
  ByteCount dropped_in_all_ = 0;
  std::array<ByteCount, method_count> by_method_{};
  std::array<AtWork, method_count> at_work_{};
  std::vector<std::array<ByteCount, method_count>> by_peer_;
  std::vector<ByteCount> owed_;     // by peer
  std::vector<ByteCount> missing_;  // per piece
  std::vector<ByteCount> dropped_;  // per piece; included in missing_
};

}  // namespace shardwire::move
