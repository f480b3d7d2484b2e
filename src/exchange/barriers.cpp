// SPDX-License-Identifier: Apache-2.0
#include "exchange/barriers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

// How long a member that was interrupted waits for others to learn of it, when none of them has begun to move bytes.
constexpr Duration patience_before_moves = std::chrono::seconds(1);

}  // namespace

Duration ExchangeBarriers::left() const {
  return std::max(Duration::zero(), Duration(deadline_ - Clock::now()));
}

std::vector<wire::ExchangeNote> ExchangeBarriers::agree(const wire::ExchangeNote& note) {
  const std::string name = fmt::format("exchange.{}.{}", exchange_, round_);
  Bytes own = wire::encode_exchange_note(note);
  std::vector<Bytes> encoded;
  try {
    encoded = host_.gather(name, std::move(own), left());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timed_out || error.code() == ErrorCode::cancelled) {
      leave_alone();
    } else {
      others_know_ = true;  // they get the same error from this barrier
    }
    throw;
  } catch (...) {  // a function of the caller has interrupted the wait
    leave_alone();
    throw;
  }
  ++round_;
  moves_began_ = true;
  std::vector<wire::ExchangeNote> notes;
  for (const Bytes& bytes : encoded) notes.push_back(wire::decode_exchange_note(bytes));
  for (std::size_t member = 0; member < notes.size(); ++member) {
    if (!notes[member].failure) continue;
    others_know_ = true;
    throw Error(notes[member].failure->code,
                fmt::format("the exchange failed on member {}: {}", member, notes[member].failure->message),
                std::vector<Rank>{Rank{static_cast<std::int32_t>(member)}});
  }
  return notes;
}

void ExchangeBarriers::ask_for_reason() {
  if (!others_know_ && host_.is_given_up()) agree({});
}

// Members that arrive later pass this barrier and learn of the failure at the next one.
void ExchangeBarriers::leave_alone() {
  others_know_ = false;
  ++round_;
}

void ExchangeBarriers::find_alike(const std::function<void()>& body) {
  others_know_ = true;
  body();
  others_know_ = false;
}

void ExchangeBarriers::send_failure() {
  if (std::exchange(others_know_, true)) return;
  wire::ExchangeNote note;
  try {
    throw;
  } catch (const Error& error) {
    note.failure = {error.code(), error.what()};
  } catch (const std::bad_alloc& error) {
    note.failure = {ErrorCode::out_of_resources, error.what()};
  } catch (const std::exception& error) {  // of a function of the caller
    note.failure = {ErrorCode::cancelled, error.what()};
  } catch (...) {
    note.failure = {ErrorCode::cancelled, "a function of the caller has thrown"};
  }
  // Members that may never come do not hold up a caller who wants its thread back.
  const bool interrupted = note.failure->code == ErrorCode::cancelled;
  const Duration patience = interrupted && !moves_began_ ? std::min(left(), patience_before_moves) : left();
  host_.give_up();  // wakes members that are in rounds; nothing else reaches them
  try {
    // Waits for the others: they may be reading from this member, and nothing here may end before they know.
    host_.gather(fmt::format("exchange.{}.{}", exchange_, round_), wire::encode_exchange_note(note), patience);
  } catch (...) {
    // The caller gets the first error.
  }
}

}  // namespace shardwire
