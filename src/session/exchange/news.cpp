// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/news.hpp"

#include <algorithm>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

// Whoever gives up is listed under this name, with the number of the exchange for a step: rosters reach all who watch one. Nothing
// is behind it that could be read.
constexpr const char* given_up_name = ".exchange.given-up";

}  // namespace

ExchangeNews exchange_news(Membership& membership, std::uint64_t exchange) {
  ExchangeNews news;
  for (const auto& [member, presence] : membership.directory().departed()) news.departed.push_back(member);
  if (membership.lost() != nullptr) {
    news.departed.push_back(0);  // which would tell of the others
    return news;
  }
  membership.watch(given_up_name);
  news.given_up = std::ranges::any_of(
      membership.directory().publications(given_up_name),
      [&](const wire::PublicationRecord& record) { return record.step == static_cast<std::int64_t>(exchange); });
  return news;
}

void give_up_exchange(Membership& membership, int member, std::uint64_t exchange) {
  wire::PublicationRecord record;
  record.member = record.layout_rank = member;
  record.step = static_cast<std::int64_t>(exchange);
  record.generation = exchange;
  try {
    membership.send(wire::Publish{given_up_name, record});
  } catch (const Error&) {
    // Out of the session: the others find that out as well.
  }
}

}  // namespace shardwire
