// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exchange/group.hpp"
#include "memory/copy_queue.hpp"
#include "restore/inventory_task.hpp"
#include "restore/rounds_step.hpp"
#include "restore/state.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "serve/memory_table.hpp"
#include "serve/publication.hpp"
#include "serve/publication_owner.hpp"
#include "session/core.hpp"
#include "session/exchange_state.hpp"
#include "session/timed_lock.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"

namespace shardwire::detail {

/// Shared state of the public handles. Owns the loop; objects that live on the loop are in the core.
class SHARDWIRE_LOCAL SessionState final : public PublicationOwner, public std::enable_shared_from_this<SessionState> {
 public:
  using Clock = std::chrono::steady_clock;

  SessionState(std::shared_ptr<Loop> loop, Bootstrap bootstrap, const SessionOptions& options);
  ~SessionState() { stop(Clock::now()); }

  /// `until`: deadline of the wait for a running exchange.
  void stop(Clock::time_point until);
  std::shared_ptr<RegisteredMemory> allocate(ByteCount bytes, MemoryKind kind, int device);
  std::shared_ptr<RegistrationState> register_memory(const View& view);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options) {
    return publish(held, options, interruption_);
  }
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options) {
    return restore(wanted, std::move(options), Aliasing::refused, interruption_);
  }
  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options);
  std::shared_ptr<ExchangeState> start_exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options);
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout) {
    return gather(name, std::move(value), timeout, interruption_);
  }
  std::vector<PeerPath> paths(const std::string& from, Duration timeout);
  Inventory inventory(restore::InventoryTask::Request request);
  void close(Duration timeout);
  [[nodiscard]] SessionUsage usage() const;
  /// The loop; a call in progress keeps it if the session is closed meanwhile. Errors: throws Error{invalid_argument}
  /// if the session is closed or belongs to another process.
  [[nodiscard]] std::shared_ptr<Loop> running() const;

  const Bootstrap bootstrap;
  std::shared_ptr<Fabrics> fabrics;     // owners: see RegisteredMemory
  std::shared_ptr<MemoryTable> memory;  // owners: this session and its core

 private:
  class Exchanging;
  enum class Aliasing : std::uint8_t { refused, checked_before };

  void make_core(Settings settings);
  void join(Clock::time_point began, Duration timeout);
  Retirement retire(const std::shared_ptr<PublicationState>& publication, Duration timeout) override;
  Retirement replace(const std::shared_ptr<PublicationState>& old, const Update& update,
                     std::shared_ptr<PublicationState>& fresh) override;
  void wait(const std::shared_ptr<PublicationState>& publication, const detail::Completion& retirement) override;
  void wait_for_end(const detail::Completion& retirement) noexcept override;
  struct StartedRetirement {
    Retirement retirement;
    std::function<void(std::vector<int> readers)> retired;
  };
  [[nodiscard]] StartedRetirement retirement_of(const std::shared_ptr<PublicationState>& publication,
                                                const char* what) const;

  [[nodiscard]] std::vector<std::shared_ptr<PublicationState>> published() const;
  void list(const std::shared_ptr<PublicationState>& publication);
  void copy_and_wait(std::vector<memory::QueuedCopy> copies);
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options, Aliasing aliasing,
                                        const Interruption& interruption, std::shared_ptr<RoundsStep> rounds = nullptr);
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout, const Interruption& interruption);
  ExchangeResult run_exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                              Exchanging& host);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options,
                                            const Interruption& interruption);
  std::shared_ptr<PublicationState> describe_publication(const Catalog& held, const PublishOptions& options,
                                                         const Interruption& interruption);
  void refuse_aliasing(const Catalog& wanted);
  void abandon();
  /// Null if running() throws.
  [[nodiscard]] std::shared_ptr<Loop> open_loop() const;

  support::OwningProcess owner_;
  const Interruption interruption_;  // of waits in calls of the caller
  std::shared_ptr<Loop> loop_;       // before core_: the core lives on it; owners: see running(); guarded by mutex_
  std::unique_ptr<Core> core_;       // loop thread only
  std::atomic<std::uint64_t> next_generation_{1};
  std::atomic<std::uint64_t> next_exchange_{1};
  std::atomic<double> join_seconds_{0};  // until the first restore has taken it
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<PublicationState>> published_;  // guarded by mutex_
  std::optional<Catalog> checked_;                          // the last one found disjoint; guarded by mutex_
  std::vector<std::uint64_t> checked_against_;              // from publications of these generations; likewise
  bool rounds_unasked_ = false;                             // the transports were not named
  TimedLock::State exchanges_;
  KeptGroup kept_group_;  // of the exchange that holds the lock
};

}  // namespace shardwire::detail
