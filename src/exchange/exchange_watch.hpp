// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "control/membership.hpp"
#include "exchange/failure_notices.hpp"
#include "shardwire/error.hpp"

namespace shardwire {

/// One exchange on the session's thread: ends what the thread of the exchange waits for once the exchange has ended for
/// all members.
/// Threads: loop thread only.
class ExchangeWatch {
 public:
  /// Ownership: borrows the membership.
  ExchangeWatch(const Membership& membership, std::uint64_t exchange) : membership_(membership), exchange_(exchange) {}

  /// Runs `stop` when the exchange ends, now if it has ended: it ends a wait. Replaces the one before; null: nothing
  /// waits.
  void guard_wait(std::function<void()> stop) {
    stop_wait_ = std::move(stop);
    directory_changed();
  }
  /// The same for a restore, which goes on while the exchange waits for other things.
  void guard_restore(std::function<void()> stop) {
    stop_restore_ = std::move(stop);
    directory_changed();
  }
  void directory_changed() {
    if (!reason()) return;
    for (auto* const stop : {&stop_restore_, &stop_wait_}) {
      if (*stop) std::exchange(*stop, nullptr)();
    }
  }
  [[nodiscard]] std::optional<Error> reason() const { return reason_of_end(membership_, exchange_); }

 private:
  const Membership& membership_;
  std::uint64_t exchange_;
  std::function<void()> stop_wait_;
  std::function<void()> stop_restore_;
};

}  // namespace shardwire
