// SPDX-License-Identifier: Apache-2.0
#include "exchange/barriers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "shardwire/error.hpp"

namespace shardwire {

namespace {

// How long a member that stops waits for the others to stop: they may be reading from it.
constexpr Duration patience_with_readers = std::chrono::milliseconds(500);

// A member that stops withdraws what it publishes. Members that read from it then fail too, and its own failure is the
// reason for theirs.
bool is_consequence(ErrorCode code) {
  return code == ErrorCode::withdrawn;
}

std::vector<wire::ExchangeNote> decode_notes(const std::vector<Bytes>& encoded) {
  std::vector<wire::ExchangeNote> notes;
  for (const Bytes& bytes : encoded) {  // empty: of a lost member
    notes.push_back(bytes.empty() ? wire::ExchangeNote() : wire::decode_exchange_note(bytes));
  }
  return notes;
}

// The failure that explains the others; null: there is none.
const wire::ExchangeNote* failed_first(const std::vector<wire::ExchangeNote>& notes) {
  const wire::ExchangeNote* failed = nullptr;
  for (const wire::ExchangeNote& note : notes) {
    if (!note.failure) continue;
    if (!is_consequence(note.failure->code)) return &note;
    if (failed == nullptr) failed = &note;
  }
  return failed;
}

Error error_of(const wire::ExchangeNote& note, std::span<const wire::ExchangeNote> notes) {
  const auto member = static_cast<std::int32_t>(&note - notes.data());
  return {note.failure->code, fmt::format("the exchange failed on member {}: {}", member, note.failure->message),
          std::vector<Rank>{Rank{member}}};
}

// The exception that is being handled.
Error current_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc& error) {
    return {ErrorCode::out_of_resources, error.what()};
  } catch (const std::exception& error) {  // of a function of the caller
    return {ErrorCode::cancelled, error.what()};
  } catch (...) {
    return {ErrorCode::cancelled, "a function of the caller has thrown"};
  }
}

}  // namespace

Duration ExchangeBarriers::left() const {
  return std::max(Duration::zero(), Duration(deadline_ - host_.now()));
}

std::string ExchangeBarriers::name() const {
  return exchange_ == 0 ? "exchange" : fmt::format("exchange.{}.{}", exchange_, round_);
}

void ExchangeBarriers::meet(std::uint64_t next_number) {
  wire::ExchangeNote note;
  note.number = next_number;
  ExchangeHost::Meeting met;
  try {
    met = host_.meet(name(), wire::encode_exchange_note(note), left());
  } catch (const Error& error) {
    others_know_ = error.code() != ErrorCode::cancelled;  // they miss this member, or get the same error
    throw;
  }
  others_know_ = true;  // what follows is the same on all
  const std::vector<wire::ExchangeNote> notes = decode_notes(met.values);
  if (const wire::ExchangeNote* failed = failed_first(notes)) throw error_of(*failed, notes);
  exchange_ = std::ranges::max_element(notes, {}, &wire::ExchangeNote::number)->number;
  host_.numbered(exchange_);
  others_know_ = false;
  if (met.interruption) std::rethrow_exception(met.interruption);
}

std::vector<wire::ExchangeNote> ExchangeBarriers::agree(const wire::ExchangeNote& note, Gathers::Kind kind) {
  throw_reason(Duration::zero());
  Bytes own = wire::encode_exchange_note(note);
  std::vector<Bytes> encoded;
  try {
    encoded = host_.gather(name(), std::move(own), left(), kind, ExchangeHost::Wait::until_given_up);
  } catch (const Error&) {
    throw_reason(Duration::zero());  // it may have ended the wait
    throw;
  }
  ++round_;
  return decode_notes(encoded);
}

void ExchangeBarriers::throw_reason_of(const Error& error) {
  throw_reason(is_consequence(error.code()) ? patience_with_reason : Duration::zero());
}

void ExchangeBarriers::throw_reason(Duration patience) {
  if (others_know_ || exchange_ == 0) return;
  if (patience > Duration::zero() && std::exchange(awaited_reason_, true)) patience = Duration::zero();
  const std::optional<Error> reason = host_.reason(patience);
  if (!reason) return;
  reason_known_ = true;
  throw Error(*reason);
}

void ExchangeBarriers::find_alike(const std::function<void()>& body) {
  others_know_ = true;
  body();
  others_know_ = false;
}

void ExchangeBarriers::send_failure() {
  if (std::exchange(others_know_, true)) return;
  const Error own = current_error();
  wire::ExchangeNote note;
  if (!reason_known_) note.failure = {own.code(), own.what()};
  if (exchange_ != 0 && !reason_known_) host_.give_up(own);
  if (left() == Duration::zero()) return;  // the others' deadline is the same
  std::vector<wire::ExchangeNote> notes;
  try {
    // Before members have met, the reason stays at that barrier for those who come.
    notes = decode_notes(host_.gather(exchange_ == 0 ? name() : fmt::format("exchange.{}.end", exchange_),
                                      wire::encode_exchange_note(note), std::min(left(), patience_with_readers),
                                      exchange_ == 0 ? Gathers::Kind::stays : Gathers::Kind::survivors,
                                      ExchangeHost::Wait::to_the_end));
  } catch (...) {
    return;  // the caller gets the first error
  }
  const wire::ExchangeNote* const failed = failed_first(notes);
  if (is_consequence(own.code()) && failed != nullptr && !is_consequence(failed->failure->code)) {
    throw error_of(*failed, notes);
  }
}

}  // namespace shardwire
