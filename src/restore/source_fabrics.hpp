// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "restore/binding.hpp"
#include "restore/callbacks.hpp"
#include "restore/path_decision.hpp"
#include "restore/source_requests.hpp"
#include "runtime/clock.hpp"

namespace shardwire::restore {

/// Limit of the first read over a fabric. After it the fabric is ruled out for the connection.
inline constexpr Duration max_proof = std::chrono::seconds(10);

/// Connects the fabrics of one source, one after the other, the best first, until no further fabric would improve a
/// path to memory that is read. Enters each in the binding.
/// Threads: loop thread only.
class SourceFabrics {
 public:
  enum class Report : std::uint8_t {
    proving,   ///< the first read over a fabric is in flight
    bound,     ///< one fabric is usable
    excluded,  ///< one fabric is not; the binding holds the reason
  };
  /// None may destroy this object.
  struct Events {
    std::function<void(Report report)> changed;  ///< after the last two, call connect_next()
    Callbacks::Failed failed;                    ///< the source is unusable
  };
  /// Fabrics that both sides have.
  enum class Connect : std::uint8_t {
    needed,
    every,  ///< none has to carry bytes
    none,   ///< nothing is read from the source
  };
  struct Options {
    Clock::Time deadline{};  ///< of the operation
    /// How long the first read over a fabric may take where another fabric is left.
    Duration patience = max_proof;
    bool wants_messages = false;  ///< even if other methods work
    Connect connect = Connect::needed;
  };

  /// Ownership: borrows all but events and options.
  SourceFabrics(const SourceContext& context, Events events, const PathInputs& paths, const Options& options,
                Binding& binding, SourceRequests& requests);
  ~SourceFabrics();

  /// Forgets what is connected, and begins again with all fabrics that both sides have.
  void restart();
  /// Starts to connect the next fabric. False: no other would improve a path.
  bool connect_next();
  /// Decides the path of the source's bytes. Errors: as decide_path().
  void choose_path();
  /// The connected fabrics of an earlier operation still suffice.
  [[nodiscard]] bool suffice() const;
  /// Reports nothing more. An opening may be on the call stack.
  void end();

 private:
  class Opening;
  void exclude(std::size_t fabric, const Error& why);

  const SourceContext& context_;
  Events events_;
  PathInputs paths_;
  Options options_;
  Binding& binding_;
  SourceRequests& requests_;
  std::deque<std::size_t> candidates_;              // fabrics that may still be worth connecting, best first
  std::vector<std::unique_ptr<Opening>> openings_;  // kept until restart(): one of them may be the caller
};

}  // namespace shardwire::restore
