// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "shardwire/types.hpp"

namespace shardwire::move {

/// Holds a stream of posted bytes to a rate: a post is allowed whenever everything posted before has been paid for.
class Pacer {
 public:
  using Clock = std::chrono::steady_clock;

  /// 0: no limit.
  explicit Pacer(ByteCount bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  /// True, and charged, when `bytes` may be posted now.
  bool take(ByteCount bytes, Clock::time_point now) {
    if (rate_ == 0) return true;
    refused_ = now < free_at_;
    if (refused_) return false;
    const auto cost = std::chrono::duration<double>(static_cast<double>(bytes) / rate_);
    // Time that passed unused is not saved up: a pause must not be followed by a burst.
    free_at_ = now + std::chrono::duration_cast<Clock::duration>(cost);
    return true;
  }
  /// When to try again, if the last attempt was turned down by the rate.
  [[nodiscard]] std::optional<Clock::time_point> retry_at() const {
    return refused_ ? std::optional(free_at_) : std::nullopt;
  }
  /// Slice size at which the rate is still smooth.
  [[nodiscard]] ByteCount slice_bytes(ByteCount most) const {
    if (rate_ == 0) return most;
    const auto smooth = static_cast<ByteCount>(rate_ / 50);
    return std::clamp<ByteCount>(smooth, std::min<ByteCount>(most, 4096), most);
  }

 private:
  double rate_;
  Clock::time_point free_at_{};
  bool refused_ = false;
};

}  // namespace shardwire::move
