// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "control/gathers.hpp"
#include "control/operation.hpp"
#include "exchange/failure_notices.hpp"
#include "exchange/group.hpp"
#include "memory/copy_queue.hpp"
#include "paths/fabric_driver.hpp"
#include "restore/rounds_step.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "shardwire/session.hpp"

namespace shardwire {

/// The parts of a session that the rounds of an exchange use.
/// Threads: loop thread only.
struct RoundsContext {
  Clock& clock;
  FabricDriver& driver;  ///< is used when the session ends, too. The functions below are not called then
  memory::CopyQueue& copies;
  /// As failure_notices_of(). Operation::directory_changed() says when to ask again.
  std::function<FailureNotices()> failure_notices;
  std::function<void(std::unique_ptr<Operation> rounds)> start;  ///< takes the rounds over and starts them
  std::function<void(Operation& rounds)> finished;               ///< the rounds are destroyed in a later loop iteration
};

/// The session, as an exchange sees it.
/// Threads: the thread of the exchange.
class ExchangeHost {
 public:
  /// How a wait ends early.
  enum class Wait : std::uint8_t {
    until_given_up,  ///< once the exchange has ended for all members: reason() is there then
    to_the_end,      ///< it does not
  };
  virtual std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout, Gathers::Kind kind,
                                    Wait wait) = 0;
  struct Meeting {
    std::vector<Bytes> values;        ///< of all members
    std::exception_ptr interruption;  ///< of this wait, if it came too late: all members have met
  };
  /// As a gather of the kind `meeting`, to the end. If the call throws, no member has met this one.
  virtual Meeting meet(const std::string& name, Bytes value, Duration timeout) = 0;
  /// The members have agreed on the number of the exchange; all that follows concerns that one.
  virtual void numbered(std::uint64_t exchange) = 0;
  /// Refuses wanted memory that is const, or overlaps itself or other publications of this member. Waits for its
  /// events; returns its places.
  virtual TensorPlaces check_destination(const Catalog& wanted) = 0;
  /// Writes device memory, and waits for that.
  virtual void copy(std::vector<memory::QueuedCopy> copies) = 0;
  virtual Publication publish(const Catalog& held, const PublishOptions& options) = 0;
  /// Does not check aliasing, and is cancelled once the exchange has ended for all members. `method`: the
  /// only one, in place of options.method; empty: any. `rounds`: take over bytes of other members; null: there are none.
  virtual Restore restore(const Catalog& wanted, RestoreOptions options, std::optional<Method> method,
                          std::shared_ptr<RoundsStep> rounds) = 0;
  /// Notifies the other members that this member stops, and why. Does not throw.
  virtual void give_up(const Error& why) = 0;
  /// Why the exchange has ended for all members; waits for that up to `patience`. Empty: it has not.
  [[nodiscard]] virtual std::optional<Error> reason(Duration patience) = 0;
  /// Members that were lost since all have met; ascending.
  [[nodiscard]] virtual std::vector<int> lost() = 0;
  virtual void warn(const std::string& text) = 0;
  /// By the session's clock.
  [[nodiscard]] virtual Clock::Time now() const = 0;
  /// The session's thread. Errors: throws LoopEnded if the session is closed.
  virtual std::shared_ptr<Loop> loop() = 0;
  [[nodiscard]] virtual const Interruption& interruption() const = 0;
  /// Call it on that thread. Ownership: what it gives borrows the host.
  virtual RoundsContext rounds() = 0;

 protected:
  ~ExchangeHost() = default;
};

/// One exchange of a session.
struct ExchangeSetup {
  int member = 0;
  std::uint64_t next_number = 1;   ///< the least that the exchange can get: above those of earlier ones here
  std::optional<Method> method{};  ///< requested on this member: by the options, else by SHARDWIRE_METHOD
  bool rounds_unasked = false;     ///< rounds are allowed without a request
  Collectives collectives = transport::registered_collectives();  ///< of the session
  KeptGroup* kept = nullptr;                                      ///< state that the session keeps between exchanges
};

}  // namespace shardwire
