// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "shardwire/costs.hpp"

namespace shardwire::support {

/// A reason for not taking a better path.
struct Fallback {
  FallbackReason reason = FallbackReason::none;
  std::string detail{};  ///< for people; empty if and only if there is no reason

  [[nodiscard]] bool empty() const { return detail.empty(); }
  bool operator==(const Fallback&) const = default;
};

/// The same reason with words before its detail. Requires: it is not empty.
inline Fallback operator+(std::string before, Fallback why) {
  return {why.reason, std::move(before) + why.detail};
}

}  // namespace shardwire::support
