// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "session/exchange/calls.hpp"
#include "wire/exchange_note.hpp"

namespace shardwire {

/// Where all members of one exchange meet: each says a word, and is told those of all.
/// Threads: one.
class ExchangeBarriers {
 public:
  using Clock = std::chrono::steady_clock;

  /// Ownership: `calls` is borrowed.
  ExchangeBarriers(const ExchangeCalls& calls, Clock::time_point deadline) : calls_(calls), deadline_(deadline) {}
  [[nodiscard]] Clock::time_point deadline() const { return deadline_; }
  [[nodiscard]] Duration left() const;

  /// Errors: as a gather; and what any member has failed with, naming it.
  std::vector<wire::ExchangeNote> agree(const wire::ExchangeNote& note);
  /// What all members find alike: nobody has to be told how it fails.
  void find_alike(const std::function<void()>& body);
  /// Called in a handler: the others find the reason at their next barrier. Waits until they are there, unless they know.
  void tell_failure();

 private:
  const ExchangeCalls& calls_;
  Clock::time_point deadline_;
  int round_ = 0;
  bool told_ = false;  // the others know, or find out by themselves, that this member goes no further
};

}  // namespace shardwire
