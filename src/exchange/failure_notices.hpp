// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "control/membership.hpp"

// Failure notices between members of an exchange, outside barriers.
namespace shardwire {

/// Notices received from the other members.
struct FailureNotices {
  std::vector<int> departed{};  ///< members that have left or were lost
  bool given_up = false;        ///< one member has stopped; it gives the reason at its next barrier
};

/// Notices about one exchange, by its number.
/// Threads: loop thread only, as the next.
FailureNotices failure_notices_of(Membership& membership, std::uint64_t exchange);
/// Notifies the other members that this member stops in an exchange; does nothing if none can be reached.
void give_up_exchange(Membership& membership, std::uint64_t exchange);

}  // namespace shardwire
