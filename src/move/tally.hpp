// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "move/transfer.hpp"

namespace shardwire::move {

/// Bytes that have arrived so far, and the time that each method and each peer has taken.
class Tally {
 public:
  using WallClock = std::chrono::steady_clock;
  using Now = std::function<WallClock::time_point()>;

  explicit Tally(Now now = &WallClock::now) : now_(std::move(now)) {}

  void expect(const Transfer& transfer);
  void arrived(const Transfer& transfer, ByteCount bytes);
  /// Bytes of this transfer that its peer will not deliver. They stay expected until another transfer of the piece
  /// takes them over.
  void dropped(const Transfer& transfer, ByteCount bytes);
  /// Extra bytes that arrived and were not wanted.
  void beyond(const Transfer& transfer, ByteCount bytes);
  /// An operation of `method` that brings bytes of `peer` begins, or ends, before what it brought is reported as arrived. A
  /// method is at work while at least one of its operations is.
  /// Requires: transfers from this peer are expected.
  void began(Method method, std::uint32_t peer);
  void ended(Method method, std::uint32_t peer);

  [[nodiscard]] ByteCount expected_bytes() const { return expected_; }
  [[nodiscard]] ByteCount done_bytes() const { return done_; }
  /// Of the expected ones, those that their peers will not deliver and no other transfer has taken over.
  [[nodiscard]] ByteCount dropped_bytes() const { return dropped_in_all_; }
  [[nodiscard]] ByteCount extra_bytes() const { return extra_; }
  [[nodiscard]] ByteCount method_bytes(Method method) const { return by_method_[index(method)]; }
  [[nodiscard]] double method_seconds(Method method) const { return at_work_[index(method)].seconds; }
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer, Method method) const;
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer) const;
  /// From the start of the first operation for bytes of this peer to the end of the last one that brought some. 0: none has.
  [[nodiscard]] double peer_seconds(std::uint32_t peer, Method method) const;
  /// The start of that operation; max: there was none.
  [[nodiscard]] WallClock::time_point peer_began(std::uint32_t peer, Method method) const;
  /// Bytes that a peer still has to deliver.
  [[nodiscard]] ByteCount owed_bytes(std::uint32_t peer) const;
  /// Whether all bytes of this piece are in place.
  [[nodiscard]] bool complete(std::uint32_t piece) const;

 private:
  struct AtWork {
    int operations = 0;
    WallClock::time_point since;
    double seconds = 0;
  };
  /// From one peer by one method.
  struct Share {
    ByteCount bytes = 0;
    WallClock::time_point began = WallClock::time_point::max();  // the first operation; max: none
    WallClock::time_point ended{};                               // the last operation so far
    WallClock::time_point arrived{};                             // the last bytes
  };
  static std::size_t index(Method method) { return static_cast<std::size_t>(method); }

  Now now_;
  ByteCount expected_ = 0;
  ByteCount done_ = 0;
  ByteCount extra_ = 0;
  ByteCount dropped_in_all_ = 0;
  std::array<ByteCount, method_count> by_method_{};
  std::array<AtWork, method_count> at_work_{};
  std::vector<std::array<Share, method_count>> by_peer_;
  std::vector<ByteCount> owed_;     // by peer
  std::vector<ByteCount> missing_;  // per piece
  std::vector<ByteCount> dropped_;  // per piece; included in missing_
};

}  // namespace shardwire::move
