// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "shardwire/types.hpp"

namespace shardwire::move {

/// Limits the rate of posted bytes: a token bucket. Bytes are charged before they are posted, so that a restore as a
/// whole never exceeds the rate. Unused tokens are kept up to `saved`: callers come late, because of a timer's rounding
/// and other work in their loop, and that must not lower the average. In any span of time T at most rate * (T + saved)
/// bytes pass, plus one post.
class RateLimiter {
 public:
  using WallClock = std::chrono::steady_clock;

  static constexpr WallClock::duration saved = std::chrono::milliseconds(20);

  /// 0: no limit.
  explicit RateLimiter(ByteCount bytes_per_second) : rate_(static_cast<double>(bytes_per_second)) {}

  /// True, and charged, if `bytes` may be posted now. Requires: `now` never goes back.
  bool take(ByteCount bytes, WallClock::time_point now) {
    if (rate_ == 0) return true;
    const WallClock::duration cost = cost_of(bytes);
    if (!spent_until_) spent_until_ = now;  // the bucket is empty at first
    const WallClock::time_point paid_at = std::max(*spent_until_, now - saved - cost) + cost;
    if (paid_at > now) {
      retry_at_ = retry_at_ && *retry_at_ > now ? std::min(*retry_at_, paid_at) : paid_at;
      return false;
    }
    spent_until_ = paid_at;
    retry_at_.reset();
    return true;
  }
  /// When to try again, if the rate refused the last attempt.
  [[nodiscard]] std::optional<WallClock::time_point> retry_at() const { return retry_at_; }
  /// Maximum slice size at which the rate is still smooth.
  [[nodiscard]] ByteCount slice_bytes(ByteCount most) const {
    if (rate_ == 0) return most;
    const auto smooth = static_cast<ByteCount>(rate_ / 100);
    return std::clamp<ByteCount>(smooth, std::min<ByteCount>(most, 4096), most);
  }

 private:
  [[nodiscard]] WallClock::duration cost_of(ByteCount bytes) const {
    // Bounded: a rate of one byte per second must not overflow the clock.
    constexpr std::chrono::duration<double> most = std::chrono::hours(24 * 365);
    const std::chrono::duration<double> cost(static_cast<double>(bytes) / rate_);
    return std::chrono::duration_cast<WallClock::duration>(std::min(cost, most));
  }

  double rate_;
  std::optional<WallClock::time_point> spent_until_;  // time up to which tokens have been spent
  std::optional<WallClock::time_point> retry_at_;
};

}  // namespace shardwire::move
