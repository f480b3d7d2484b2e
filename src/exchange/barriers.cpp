// SPDX-License-Identifier: Apache-2.0
#include "exchange/barriers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <new>
#include <optional>
#include <span>
#include <utility>

#include "runtime/await.hpp"
#include "shardwire/error.hpp"
#include "support/ranks_of.hpp"
#include "wire/limits.hpp"

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

// A name that cannot travel is left out.
bool can_travel(const Gap& gap) {
  return gap.fqn.size() <= wire::max_fqn_bytes && gap.state.size() <= wire::max_name_bytes;
}

wire::ExchangeGivenUp notice_of(std::uint64_t exchange, const Error& why) {
  wire::ExchangeGivenUp notice;
  notice.exchange = exchange;
  notice.code = why.code();
  notice.message = why.what();
  for (const Rank rank : why.ranks()) notice.members.push_back(to_int(rank));
  for (const Gap& gap : why.gaps()) {
    if (notice.gaps.size() < wire::max_gaps_of_notice && can_travel(gap)) notice.gaps.push_back(gap);
  }
  return notice;
}

Error error_of(const wire::ExchangeGivenUp& notice) {
  std::vector<Rank> ranks = support::ranks_of(notice.members);
  if (ranks.empty()) ranks.push_back(Rank{notice.member});
  return {notice.code, fmt::format("the exchange failed on member {}: {}", notice.member, notice.message), notice.gaps,
          std::move(ranks)};
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

ExchangeBarriers::~ExchangeBarriers() {
  context_.on_loop([this] { context_.on_directory_changed(nullptr); });
}

Duration ExchangeBarriers::left() const {
  return std::max(Duration::zero(), Duration(deadline_ - context_.loop->now()));
}

std::string ExchangeBarriers::name() const {
  return exchange_ == 0 ? "exchange" : fmt::format("exchange.{}.{}", exchange_, round_);
}

void ExchangeBarriers::meet() {
  wire::ExchangeNote note;
  note.number = context_.next_number;
  Values values;
  std::exception_ptr interruption;
  try {
    values = meet_all(wire::encode_exchange_note(note), interruption);
  } catch (const Error& error) {
    others_know_ = error.code() != ErrorCode::cancelled;  // they miss this member, or get the same error
    throw;
  }
  others_know_ = true;  // what follows is the same on all
  const std::vector<wire::ExchangeNote> notes = decode_notes(values);
  if (const wire::ExchangeNote* failed = failed_first(notes)) throw error_of(*failed, notes);
  exchange_ = std::ranges::max_element(notes, {}, &wire::ExchangeNote::number)->number;
  context_.next_number = exchange_ + 1;
  context_.loop->call([this] { context_.on_directory_changed([this] { directory_changed(); }); });
  others_know_ = false;
  if (interruption) std::rethrow_exception(interruption);
}

// An interruption takes the value back and waits for the answer to that, which says whether the members had met before.
ExchangeBarriers::Values ExchangeBarriers::meet_all(const Bytes& value, std::exception_ptr& interruption) {
  std::uint64_t request = 0;
  Awaited<Values> values = begin_on<Values>(*context_.loop, [&](const Answer<Values>& answer) {
    request = context_.membership.gather(name(), value, Gathers::Kind::meeting, left(),
                                         [this, answer](Values all, const std::exception_ptr& error) {
                                           if (error) return answer.fail(error);  // also when the core ends
                                           losses_ = context_.membership.directory().losses();
                                           answer.give(std::move(all));
                                         });
  });
  try {
    if (context_.interruption.is_possible()) {
      context_.interruption.wait(
          [&](auto slice) { return values.ready_within(slice); },
          [&] {
            context_.loop->post([&membership = context_.membership, request] { membership.quit_gather(request); });
          });
    }
  } catch (...) {
    interruption = std::current_exception();
  }
  try {
    return values.take();
  } catch (const Error&) {
    if (interruption) std::rethrow_exception(interruption);
    throw;
  }
}

ExchangeBarriers::Values ExchangeBarriers::gather(const std::string& name, const Bytes& value, Duration timeout,
                                                  Gathers::Kind kind, Wait wait) {
  Awaited<Values> values = begin_on<Values>(*context_.loop, [&](const Answer<Values>& answer) {
    Membership& membership = context_.membership;
    const std::uint64_t request = membership.gather(name, value, kind, timeout, answer);
    if (wait == Wait::until_given_up) guard_wait([&membership, request] { membership.quit_gather(request); });
  });
  return values.take(context_.interruption);
}

std::vector<wire::ExchangeNote> ExchangeBarriers::agree(const wire::ExchangeNote& note, Gathers::Kind kind) {
  throw_reason(Duration::zero());
  const Bytes own = wire::encode_exchange_note(note);
  Values encoded;
  try {
    encoded = gather(name(), own, left(), kind, Wait::until_given_up);
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
  const std::optional<Error> found = reason_within(patience);
  if (!found) return;
  reason_known_ = true;
  throw Error(*found);
}

std::optional<Error> ExchangeBarriers::reason_within(Duration patience) {
  const Awaited<void> given_up =
      begin_on<void>(*context_.loop, [&](const Answer<void>& answer) { guard_wait([answer] { answer.give(); }); });
  static_cast<void>(given_up.ready_within(patience));
  return context_.loop->call([this] {
    guard_wait(nullptr);
    return reason();
  });
}

void ExchangeBarriers::guard_wait(std::function<void()> stop) {
  stop_wait_ = std::move(stop);
  directory_changed();
}

void ExchangeBarriers::guard_restore(std::function<void()> cancel) {
  context_.on_loop([&] {
    stop_restore_ = std::move(cancel);
    directory_changed();
  });
}

void ExchangeBarriers::directory_changed() {
  if (!reason()) return;
  for (auto* const stop : {&stop_restore_, &stop_wait_}) {
    if (*stop) std::exchange(*stop, nullptr)();
  }
}

std::optional<Error> ExchangeBarriers::reason() const {
  const Membership& membership = context_.membership;
  if (membership.directory().is_given_up(exchange_)) return error_of(membership.directory().given_up());
  if (membership.lost() != nullptr) return *membership.lost();
  return std::nullopt;
}

FailureNotices ExchangeBarriers::notices() const {
  const Membership& membership = context_.membership;
  FailureNotices notices;
  for (const auto& [member, presence] : membership.directory().departed()) notices.departed.push_back(member);
  if (membership.lost() != nullptr) notices.departed.push_back(0);  // no further notice can arrive without member 0
  notices.given_up = membership.directory().is_given_up(exchange_);
  return notices;
}

std::vector<int> ExchangeBarriers::lost() const {
  std::vector<int> members;
  context_.on_loop([&] { members = context_.membership.directory().lost_since(losses_); });
  return members;
}

void ExchangeBarriers::give_up(const Error& why) {
  context_.loop->post([&membership = context_.membership, notice = notice_of(exchange_, why)] {
    try {
      membership.send(notice);
    } catch (const Error&) {
      // This member has lost the session; the others learn of that separately.
    }
  });
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
  // The others miss a session that ends: that is no failure of the exchange.
  if (exchange_ != 0 && !reason_known_ && context_.is_open()) give_up(own);
  if (left() == Duration::zero()) return;  // the others' deadline is the same
  std::vector<wire::ExchangeNote> notes;
  try {
    // Before members have met, the reason stays at that barrier for those who come.
    notes = decode_notes(gather(exchange_ == 0 ? name() : fmt::format("exchange.{}.end", exchange_),
                                wire::encode_exchange_note(note), std::min(left(), patience_with_readers),
                                exchange_ == 0 ? Gathers::Kind::stays : Gathers::Kind::survivors, Wait::to_the_end));
  } catch (...) {
    return;  // the caller gets the first error
  }
  const wire::ExchangeNote* const failed = failed_first(notes);
  if (is_consequence(own.code()) && failed != nullptr && !is_consequence(failed->failure->code)) {
    throw error_of(*failed, notes);
  }
}

}  // namespace shardwire
