// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "control/membership.hpp"
#include "shardwire/error.hpp"

// Failure notices between members of an exchange, outside barriers.
namespace shardwire {

/// Notices received from the other members.
struct FailureNotices {
  std::vector<int> departed{};  ///< members that have left or were lost
  bool given_up = false;        ///< one member has stopped
};

/// Notices about one exchange, by its number.
/// Threads: loop thread only, as the next.
FailureNotices failure_notices_of(const Membership& membership, std::uint64_t exchange);
/// Why this exchange has ended for all members: one of them has given it up, or member 0 is lost. Empty: it has not.
std::optional<Error> reason_of_end(const Membership& membership, std::uint64_t exchange);
/// Notifies the other members that this member stops in an exchange, and why; does nothing if none can be reached.
void give_up_exchange(Membership& membership, std::uint64_t exchange, const Error& why);

}  // namespace shardwire
