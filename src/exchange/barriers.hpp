// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "exchange/context.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// Barriers of one exchange: every member contributes a note and receives those of all. Once the exchange has ended for
/// all members, ends the wait and the restore that this member is in.
/// Threads: that of the exchange, unless stated otherwise.
class ExchangeBarriers {
 public:
  /// Ownership: `context` is borrowed.
  ExchangeBarriers(const ExchangeContext& context, Clock::Time deadline) : context_(context), deadline_(deadline) {}
  ~ExchangeBarriers();
  ExchangeBarriers(const ExchangeBarriers&) = delete;
  ExchangeBarriers& operator=(const ExchangeBarriers&) = delete;
  [[nodiscard]] Clock::Time deadline() const { return deadline_; }
  [[nodiscard]] Duration left() const;

  /// The first barrier: waits for all members, and agrees on the number of the exchange. It is above those of earlier
  /// exchanges on every member, so a member that missed some, or is new, takes part. Errors: as agree().
  void meet();
  /// Requires: meet() has returned.
  [[nodiscard]] std::uint64_t number() const { return exchange_; }
  /// `kind`: Gathers::Kind::survivors leaves the notes of lost members empty; else a lost member is an error.
  /// Errors: as a gather; also the failure of any member, naming it.
  std::vector<wire::ExchangeNote> agree(const wire::ExchangeNote& note, Gathers::Kind kind = Gathers::Kind::stays);
  /// If another member has given the exchange up, throws its reason. Waits for it if `error` can only follow from that.
  void throw_reason_of(const Error& error);
  /// Waits shortly for another member to give the exchange up, and throws its reason.
  void await_reason() { throw_reason(patience_with_reason); }
  /// Runs a check that gives the same result on every member. If it throws, no failure has to be sent.
  void find_alike(const std::function<void()>& body);
  /// Call it in an exception handler. Sends the error to the other members, and waits shortly until they have stopped
  /// too. Errors: throws the failure of another member that is the reason for this one.
  void send_failure();
  /// Notifies the other members that this member stops, and why, as far as they can be reached. Does not throw.
  void give_up(const Error& why);
  /// Calls `cancel` on the loop's thread when the exchange ends for all members, now if it has. Replaces the one before.
  void guard_restore(std::function<void()> cancel);

  /// As Directory::losses() when all members had met.
  [[nodiscard]] std::size_t losses() const { return losses_; }
  /// Members that were lost since then; ascending.
  [[nodiscard]] std::vector<int> lost() const;
  /// Threads: loop thread only.
  [[nodiscard]] FailureNotices notices() const;

 private:
  using Values = std::vector<Bytes>;
  /// How a wait ends early.
  enum class Wait : std::uint8_t {
    until_given_up,  ///< once the exchange has ended for all members
    to_the_end,      ///< it does not
  };
  // How long a member waits for the reason of an error that can only follow from another one.
  static constexpr Duration patience_with_reason = std::chrono::seconds(1);

  [[nodiscard]] std::string name() const;
  void throw_reason(Duration patience);
  /// As reason(), after a wait for that of up to `patience`.
  std::optional<Error> reason_within(Duration patience);
  Values gather(const std::string& name, const Bytes& value, Duration timeout, Gathers::Kind kind, Wait wait);
  /// The values of all members. `interruption`: of this wait, if it came too late: all members have met. If the call
  /// throws, no member has met this one.
  Values meet_all(const Bytes& value, std::exception_ptr& interruption);

  // Threads: loop thread only.
  void guard_wait(std::function<void()> stop);
  void directory_changed();
  /// Why the exchange has ended for all members: one of them has given it up, or member 0 is lost. Empty: it has not.
  [[nodiscard]] std::optional<Error> reason() const;

  const ExchangeContext& context_;
  std::uint64_t exchange_ = 0;       // until members have met
  std::size_t losses_ = 0;           // likewise
  std::function<void()> stop_wait_;  // loop thread only, as the next; null: nothing waits
  std::function<void()> stop_restore_;
  Clock::Time deadline_;
  int round_ = 0;
  bool awaited_reason_ = false;  // once: what has not come within the patience does not come
  bool reason_known_ = false;    // another member has given the exchange up, or it cannot be told to any
  bool others_know_ = false;     // the others find out by themselves that this member has stopped
};

}  // namespace shardwire
