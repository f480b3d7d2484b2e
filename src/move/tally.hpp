// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "move/transfer.hpp"

namespace shardwire::move {

/// What has arrived so far, and how long each way was at work.
class Tally {
 public:
  using Clock = std::chrono::steady_clock;

  void expect(const Transfer& transfer);
  void arrived(const Transfer& transfer, ByteCount bytes);
  /// Bytes that will not come from this transfer's peer. They stay expected, until another transfer of the piece takes
  /// them over.
  void dropped(const Transfer& transfer, ByteCount bytes);
  /// Bytes that came along and were not wanted.
  void beyond(const Transfer& transfer, ByteCount bytes);
  /// An operation of `way` begins or ends. A way is at work while at least one of its operations is.
  void began(Way way);
  void ended(Way way);

  [[nodiscard]] ByteCount expected_bytes() const { return expected_; }
  [[nodiscard]] ByteCount done_bytes() const { return done_; }
  [[nodiscard]] ByteCount extra_bytes() const { return extra_; }
  [[nodiscard]] ByteCount way_bytes(Way way) const { return by_way_[index(way)]; }
  [[nodiscard]] double way_seconds(Way way) const { return at_work_[index(way)].seconds; }
  [[nodiscard]] ByteCount peer_bytes(std::uint32_t peer, Way way) const;
  /// What a peer still has to deliver.
  [[nodiscard]] ByteCount owed_bytes(std::uint32_t peer) const;
  /// Whether all bytes of this piece are in place.
  [[nodiscard]] bool complete(std::uint32_t piece) const;

 private:
  struct AtWork {
    int operations = 0;
    Clock::time_point since;
    double seconds = 0;
  };
  static std::size_t index(Way way) { return static_cast<std::size_t>(way); }

  ByteCount expected_ = 0;
  ByteCount done_ = 0;
  ByteCount extra_ = 0;
  std::array<ByteCount, way_count> by_way_{};
  std::array<AtWork, way_count> at_work_{};
  std::vector<std::array<ByteCount, way_count>> by_peer_;
  std::vector<ByteCount> owed_;     // by peer
  std::vector<ByteCount> missing_;  // per piece
  std::vector<ByteCount> dropped_;  // per piece; of what is missing
};

}  // namespace shardwire::move
