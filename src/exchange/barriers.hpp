// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "exchange/host.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// Barriers of one exchange: every member contributes a note and receives those of all.
/// Threads: one.
class ExchangeBarriers {
 public:
  /// Ownership: `host` is borrowed.
  ExchangeBarriers(ExchangeHost& host, Clock::Time deadline) : host_(host), deadline_(deadline) {}
  [[nodiscard]] Clock::Time deadline() const { return deadline_; }
  [[nodiscard]] Duration left() const;

  /// The first barrier: waits for all members, and agrees on the number of the exchange. It is above those of earlier
  /// exchanges on every member, so a member that missed some, or is new, takes part. Errors: as agree().
  void meet(std::uint64_t next_number);
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

 private:
  // How long a member waits for the reason of an error that can only follow from another one.
  static constexpr Duration patience_with_reason = std::chrono::seconds(1);

  [[nodiscard]] std::string name() const;
  void throw_reason(Duration patience);

  ExchangeHost& host_;
  std::uint64_t exchange_ = 0;  // until members have met
  Clock::Time deadline_;
  int round_ = 0;
  bool awaited_reason_ = false;  // once: what has not come within the patience does not come
  bool reason_known_ = false;    // another member has given the exchange up, or it cannot be told to any
  bool others_know_ = false;     // the others find out by themselves that this member has stopped
};

}  // namespace shardwire
