// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "exchange/host.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// Barriers of one exchange: every member contributes a note and receives those of all.
/// Threads: one.
class ExchangeBarriers {
 public:
  using Clock = std::chrono::steady_clock;

  /// `exchange`: its number. Ownership: `host` is borrowed.
  ExchangeBarriers(ExchangeHost& host, std::uint64_t exchange, Clock::time_point deadline)
      : host_(host), exchange_(exchange), deadline_(deadline) {}
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }
  [[nodiscard]] Duration left() const;

  /// Errors: as a gather; also the failure of any member, naming it.
  std::vector<wire::ExchangeNote> agree(const wire::ExchangeNote& note);
  /// If another member has given the exchange up, and its reason is not known here yet, waits for that at the next
  /// barrier and throws it.
  void ask_for_reason();
  /// Runs a check that gives the same result on every member. If it throws, no failure has to be sent.
  void find_alike(const std::function<void()>& body);
  /// Call it in an exception handler. The other members receive the error at their next barrier. Waits for them there,
  /// unless they know of it already.
  void send_failure();

 private:
  void leave_alone();

  ExchangeHost& host_;
  std::uint64_t exchange_;
  Clock::time_point deadline_;
  int round_ = 0;
  bool moves_began_ = false;  // by this member's knowledge: all members came to the first barrier
  bool others_know_ = false;  // the others know, or will find out by themselves, that this member has stopped
};

}  // namespace shardwire
