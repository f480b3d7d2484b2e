// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "exchange/failure_notices.hpp"
#include "exchange/group.hpp"
#include "memory/copy_queue.hpp"
#include "paths/fabric_driver.hpp"
#include "restore/rounds_step.hpp"
#include "restore/running_restore.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// The session, as the rounds of an exchange see it.
/// Threads: loop thread only.
class RoundsHost {
 public:
  virtual Clock& clock() = 0;
  virtual FabricDriver& driver() = 0;
  virtual memory::CopyQueue& copies() = 0;
  /// As failure_notices_of(). RunningRestore::directory_changed() says when to ask again.
  [[nodiscard]] virtual FailureNotices failure_notices() const = 0;
  /// Takes it over and starts it.
  virtual void start(std::unique_ptr<RunningRestore> rounds) = 0;
  /// They are destroyed in a later loop iteration.
  virtual void finished(RunningRestore& rounds) = 0;

 protected:
  ~RoundsHost() = default;
};

/// The session, as an exchange sees it.
/// Threads: the thread of the exchange.
class ExchangeHost {
 public:
  virtual std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout) = 0;
  /// Refuses wanted memory that is const, or overlaps itself or other publications of this member. Waits for its
  /// events; returns its places.
  virtual TensorPlaces check_destination(const Catalog& wanted) = 0;
  /// Writes device memory, and waits for that.
  virtual void copy(std::vector<memory::QueuedCopy> copies) = 0;
  virtual Publication publish(const Catalog& held, const PublishOptions& options) = 0;
  /// Does not check aliasing. `rounds`: take over bytes of other members; null: there are none.
  virtual Restore restore(const Catalog& wanted, RestoreOptions options, std::shared_ptr<RoundsStep> rounds) = 0;
  /// Notifies the other members that this member stops. Does not throw.
  virtual void give_up() = 0;
  /// Whether another member has done so.
  [[nodiscard]] virtual bool is_given_up() = 0;
  /// The session's thread. Errors: throws LoopEnded if the session is closed.
  virtual std::shared_ptr<Loop> loop() = 0;
  [[nodiscard]] virtual const Interruption& interruption() const = 0;
  /// For use on that thread.
  virtual RoundsHost& rounds() = 0;

 protected:
  ~ExchangeHost() = default;
};

/// One exchange of a session.
struct ExchangeSetup {
  int member = 0;
  std::uint64_t number = 0;        ///< of the exchange in this session, from 1; the same on every member
  std::optional<Method> method{};  ///< requested on this member: by the options, else by SHARDWIRE_METHOD
  bool rounds_unasked = false;     ///< rounds are allowed without a request
  KeptGroup* kept = nullptr;       ///< state that the session keeps between exchanges
};

}  // namespace shardwire
