// SPDX-License-Identifier: Apache-2.0
#include "exchange/failure_notices.hpp"

#include "shardwire/error.hpp"

namespace shardwire {

FailureNotices failure_notices_of(Membership& membership, std::uint64_t exchange) {
  FailureNotices notices;
  for (const auto& [member, presence] : membership.directory().departed()) notices.departed.push_back(member);
  if (membership.lost() != nullptr) notices.departed.push_back(0);  // no further notice can arrive without member 0
  notices.given_up = membership.directory().is_given_up(exchange);
  return notices;
}

void give_up_exchange(Membership& membership, std::uint64_t exchange) {
  try {
    membership.send(wire::ExchangeGivenUp{exchange});
  } catch (const Error&) {
    // This member has lost the session; the others learn of that separately.
  }
}

}  // namespace shardwire
