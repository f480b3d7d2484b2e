// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "memory/device_copy/host_device.hpp"

namespace shardwire::memory {

/// Divides numbers less than max_excess above the divisor by a multiplication: devices have no division instruction and
/// take about a hundred instructions for 64 bits.
class SmallDivisor {
 public:
  static constexpr std::uint64_t max_excess = 1u << 17;

  SmallDivisor() = default;
  /// Requires: divisor > 0.
  SHARDWIRE_HOST_DEVICE explicit SmallDivisor(std::uint64_t divisor)
      : divisor_(divisor), factor_(divisor > max_excess ? 0 : (std::uint64_t{1} << shift) / divisor + 1) {}

  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t value() const { return divisor_; }
  /// Requires: n < value() + max_excess.
  [[nodiscard]] SHARDWIRE_HOST_DEVICE std::uint64_t quotient(std::uint64_t n) const {
    if (factor_ == 0) return n >= divisor_ ? 1 : 0;  // larger than the excess: the quotient is at most 1
    return (n * factor_) >> shift;
  }

 private:
  // The factor exceeds the exact one by less than 2^-40 of n. n < 2^18 and the divisor <= 2^17, so no quotient is
  // rounded up, and n times the factor stays below 2^59.
  static constexpr unsigned shift = 40;

  std::uint64_t divisor_ = 1;
  std::uint64_t factor_ = (std::uint64_t{1} << shift) + 1;
};

}  // namespace shardwire::memory
