// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "restore/binding.hpp"
#include "restore/callbacks.hpp"
#include "runtime/clock.hpp"

namespace shardwire::restore {

/// Limit of the first read over a fabric. After it the fabric is ruled out for the connection.
inline constexpr Duration max_proof = std::chrono::seconds(10);

/// One attempt to bind a source over one fabric: prepares the fabric's sockets, requests the source's handles, imports
/// them, and reads the generation word once, since a reachable network may still carry no data. Tries a second time if
/// the sockets had ended before use, or if a read failed that other operations may have spoilt.
/// Threads: loop thread only.
class FabricAttempt {
 public:
  /// One of the last three is the last call. None may destroy the attempt.
  struct Events {
    std::function<void()> proving;  ///< the first read is in flight
    std::function<void(BoundFabric bound)> bound;
    std::function<void(const Error& why)> excluded;  ///< the fabric is unusable for this source; others may work
    Callbacks::Failed failed;                        ///< the source is unusable
  };
  struct Setup {
    Clock& clock;
    Binding& binding;  ///< of the source: read only; its link is used
    std::uint64_t lease = 0;
    Clock::Time deadline;    ///< of the restore
    Duration patience{};     ///< limit of the first read, beside max_proof and half of the time to the deadline
    bool tolerant = false;   ///< any failure of a fabric excludes that fabric, not the source
    RequestCount& requests;  ///< of the source
  };

  /// Ownership: borrows the setup's objects.
  FabricAttempt(const Setup& setup, std::size_t fabric, Events events);
  ~FabricAttempt();
  void start() { prepare(Round::first); }
  /// Takes no further answer and tells its source nothing more. It may be on the call stack.
  void end();

 private:
  enum class Round : std::uint8_t { first, last };

  void prepare(Round round);
  void ask(Round round);
  void answered(Round round, std::uint64_t sockets, wire::Message& message);
  void bound(Round round, wire::Bound& reply);
  void import_regions(std::vector<support::Descriptor> descriptors);
  void prove(Round round);
  void proof_late();
  void proof_read(Round round, const transport::Outcome& fault);

  Setup setup_;
  std::size_t fabric_;
  Events events_;
  Callbacks callbacks_;
  BoundFabric bound_;
  Timer proof_timer_;
  std::optional<Clock::Time> proving_since_;  // the first try
  Duration proof_limit_{};                    // of both tries
  std::shared_ptr<bool> proof_;  // while the first read is under way; owner: this; its completion holds a weak one
};

}  // namespace shardwire::restore
