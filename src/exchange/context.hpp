// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "catalog/tensor_places.hpp"
#include "control/membership.hpp"
#include "exchange/rounds.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

namespace restore {
struct InExchange;
}

/// The parts of a session that an exchange uses.
struct ExchangeContext : RoundsContext {
  std::atomic<std::uint64_t>& next_number;  ///< above those of all exchanges that this member took part in

  // Threads: loop thread only.
  Membership& membership;
  std::function<void(std::function<void()> changed)> on_directory_changed;  ///< calls `changed`, until it is null again
  std::function<void(LogLevel level, const std::string& text)> log;

  // Threads: that of the exchange.
  std::function<bool()> is_open;  ///< false once the session ends
  /// Refuses wanted memory that is const, or overlaps itself or other publications of this member. Waits for its
  /// events; returns its places.
  std::function<TensorPlaces(const Catalog& wanted)> check_destination;
  CopyAndWait copy;
  std::function<Publication(const Catalog& held, const PublishOptions& options)> publish;
  /// Takes a function that cancels the restore, to be called on the loop's thread.
  using Guard = std::function<void(std::function<void()> cancel)>;
  /// Does not check aliasing.
  std::function<Restore(const Catalog& wanted, RestoreOptions options, restore::InExchange around, const Guard& guard)>
      begin_restore;

  /// Runs `task` on the loop's thread. Does nothing if the session has ended.
  template <typename Task>
  void on_loop(Task task) const {
    try {
      loop->call(std::move(task));
    } catch (const LoopEnded&) {  // nothing is left to do there
    }
  }
};

}  // namespace shardwire
