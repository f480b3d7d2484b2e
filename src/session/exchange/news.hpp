// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "session/control/membership.hpp"

// What members tell one another while they are in an exchange, and at no barrier.
namespace shardwire {

/// What a session hears of the other members meanwhile.
struct ExchangeNews {
  std::vector<int> departed{};  ///< members that have left or were lost
  bool given_up = false;        ///< one goes no further, and says why at its next barrier
};

/// Those of an exchange, by its number. When first asked, it asks for them.
/// Threads: loop thread only, as the next.
ExchangeNews exchange_news(Membership& membership, std::uint64_t exchange);
/// Makes it news for the others that `member` goes no further in an exchange. Where nobody can be told, nothing.
void give_up_exchange(Membership& membership, int member, std::uint64_t exchange);

}  // namespace shardwire
