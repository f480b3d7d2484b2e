// SPDX-License-Identifier: Apache-2.0
#include "exchange/failure_notices.hpp"

#include <fmt/core.h>

#include "support/ranks_of.hpp"
#include "wire/limits.hpp"

namespace shardwire {

namespace {

// A name that cannot travel is left out.
bool can_travel(const Gap& gap) {
  return gap.fqn.size() <= wire::max_fqn_bytes && gap.state.size() <= wire::max_name_bytes;
}

}  // namespace

FailureNotices failure_notices_of(const Membership& membership, std::uint64_t exchange) {
  FailureNotices notices;
  for (const auto& [member, presence] : membership.directory().departed()) notices.departed.push_back(member);
  if (membership.lost() != nullptr) notices.departed.push_back(0);  // no further notice can arrive without member 0
  notices.given_up = membership.directory().is_given_up(exchange);
  return notices;
}

std::optional<Error> reason_of_end(const Membership& membership, std::uint64_t exchange) {
  if (membership.directory().is_given_up(exchange)) {
    const wire::ExchangeGivenUp& notice = membership.directory().given_up();
    std::vector<Rank> ranks = support::ranks_of(notice.members);
    if (ranks.empty()) ranks.push_back(Rank{notice.member});
    return Error(notice.code, fmt::format("the exchange failed on member {}: {}", notice.member, notice.message),
                 notice.gaps, std::move(ranks));
  }
  if (membership.lost() != nullptr) return *membership.lost();
  return std::nullopt;
}

void give_up_exchange(Membership& membership, std::uint64_t exchange, const Error& why) {
  wire::ExchangeGivenUp notice;
  notice.exchange = exchange;
  notice.code = why.code();
  notice.message = why.what();
  for (const Rank rank : why.ranks()) notice.members.push_back(to_int(rank));
  for (const Gap& gap : why.gaps()) {
    if (notice.gaps.size() < wire::max_gaps_of_notice && can_travel(gap)) notice.gaps.push_back(gap);
  }
  try {
    membership.send(notice);
  } catch (const Error&) {
    // This member has lost the session; the others learn of that separately.
  }
}

}  // namespace shardwire
