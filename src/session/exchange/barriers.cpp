// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/barriers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

Duration ExchangeBarriers::left() const {
  return std::max(Duration::zero(), Duration(deadline_ - Clock::now()));
}

std::vector<wire::ExchangeNote> ExchangeBarriers::agree(const wire::ExchangeNote& note) {
  const std::string name = fmt::format("exchange.{}.{}", calls_.number, round_);
  Bytes own = wire::encode_exchange_note(note);
  std::vector<Bytes> encoded;
  try {
    encoded = calls_.gather(name, std::move(own), left());
  } catch (const Error& error) {
    // Those who come later than this member waits meet as if it went on, and find out at the next barrier.
    told_ = error.code() != ErrorCode::timed_out;
    if (!told_) ++round_;
    throw;  // else the others have it from the same barrier
  }
  ++round_;
  std::vector<wire::ExchangeNote> notes;
  for (const Bytes& bytes : encoded) notes.push_back(wire::decode_exchange_note(bytes));
  for (std::size_t member = 0; member < notes.size(); ++member) {
    if (!notes[member].failure) continue;
    told_ = true;
    throw Error(notes[member].failure->code,
                fmt::format("the exchange failed on member {}: {}", member, notes[member].failure->message),
                std::vector<Rank>{Rank{static_cast<std::int32_t>(member)}});
  }
  return notes;
}

void ExchangeBarriers::find_alike(const std::function<void()>& body) {
  told_ = true;
  body();
  told_ = false;
}

void ExchangeBarriers::tell_failure() {
  if (std::exchange(told_, true)) return;
  wire::ExchangeNote note;
  try {
    throw;
  } catch (const Error& error) {
    note.failure = {error.code(), error.what()};
  } catch (const std::exception& error) {
    note.failure = {ErrorCode::internal, error.what()};
  }
  calls_.give_up();  // for those in rounds, whom nothing else may tell
  try {
    // Until they are there: they may be reading from this member, and nothing here may end before they know.
    calls_.gather(fmt::format("exchange.{}.{}", calls_.number, round_), wire::encode_exchange_note(note), left());
  } catch (const std::exception&) {
    // What went wrong first is what the caller hears.
  }
}

}  // namespace shardwire
