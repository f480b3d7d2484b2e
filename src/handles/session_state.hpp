// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exchange/group.hpp"
#include "handles/exchange_state.hpp"
#include "handles/timed_lock.hpp"
#include "memory/copy_queue.hpp"
#include "restore/inventory_task.hpp"
#include "restore/operation.hpp"
#include "restore/rounds_step.hpp"
#include "restore/state.hpp"
#include "runtime/completion.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "serve/memory_table.hpp"
#include "serve/publication.hpp"
#include "session/buddies.hpp"
#include "session/core.hpp"
#include "session/keeping.hpp"
#include "session/surroundings.hpp"
#include "shardwire/session.hpp"
#include "support/fork.hpp"
#include "support/function_ref.hpp"
#include "telemetry/metrics_file.hpp"
#include "telemetry/metrics_server.hpp"
#include "telemetry/trace.hpp"

namespace shardwire {
struct ExchangeContext;
namespace restore {
struct Request;
}
}  // namespace shardwire

namespace shardwire::detail {

/// Shared state of the public handles. Owns the loop; objects that live on the loop are in the core.
class SHARDWIRE_LOCAL SessionState final : public std::enable_shared_from_this<SessionState> {
 public:
  using WallClock = std::chrono::steady_clock;

  /// The session has joined once join() returns.
  SessionState(Surroundings surroundings, Bootstrap bootstrap, const SessionOptions& options);
  ~SessionState() {
    stop(WallClock::now());
    buddies_.reset();  // its thread may be on its way to this session
  }

  /// A session that has joined. Errors: as Session::join().
  static Session join_in(const std::function<Surroundings()>& surroundings, Bootstrap bootstrap,
                         const SessionOptions& options);
  /// Waits until the session has joined. `began`: start of the caller's call; the timeout counts from there.
  void join(WallClock::time_point began);
  /// As join(), without waiting: `joined` runs on the loop's thread. Requires: the bootstrap has no store.
  void begin_join(Duration timeout, std::function<void(const std::exception_ptr&)> joined);
  /// `until`: deadline of the wait for a running exchange.
  void stop(WallClock::time_point until);
  std::shared_ptr<RegisteredMemory> allocate(ByteCount bytes, MemoryKind kind, int device);
  std::shared_ptr<RegistrationState> register_memory(const View& view);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options);
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options) {
    static_cast<void>(waiting_in("restore"));
    return restore(wanted, std::move(options), interruption_, std::nullopt);
  }
  /// A snapshot that another process has made.
  struct KeptSnapshot {
    std::string name;
    std::int64_t step = 0;
    std::uint64_t origin = 0;   ///< see wire::PublicationRecord
    std::uint32_t attempt = 0;  ///< likewise
    std::int32_t layout_rank = 0;
    Bytes manifest;  ///< encoded, as the next
    Bytes values;
    std::vector<wire::KeptTensor> tensors;
    std::vector<Digest128> digests;  ///< see wire::KeepDone
    std::shared_ptr<memory::SharedMemory> memory;
  };
  /// Publishes it, and returns once member 0 has told all that restore from its name.
  /// Errors: throws Error{transport_failed} or Error{invalid_argument} if its parts do not fit together, Error{timed_out}
  /// if member 0 does not answer; as publish().
  std::shared_ptr<PublicationState> publish_kept(const KeptSnapshot& kept, Duration timeout);

  // --- of a publication ---
  /// The end of a retirement. Its error, if any, names the readers that were left. Null: the session is closed.
  /// Owners: the caller and the retirement on the loop.
  using Retirement = std::shared_ptr<Completion>;
  struct Update {
    const Catalog& held;
    std::int64_t step = 0;
    Snapshot snapshot = Snapshot::none;
    Duration timeout{};
  };
  /// Withdraws it. The retirement ends when it has no readers, or when `timeout` has passed.
  Retirement retire(const std::shared_ptr<PublicationState>& publication, Duration timeout);
  /// Publishes the update in place of `old`, and sets `fresh` as soon as peers can see it. The result is the retirement
  /// of `old`.
  Retirement replace(const std::shared_ptr<PublicationState>& old, const Update& update,
                     std::shared_ptr<PublicationState>& fresh);
  /// Blocks until the retirement has ended. An interruption of the wait ends its timeout.
  /// Errors: throws its error, the interruption, and Error{unsupported} if the loop's thread would have to wait.
  void wait(const std::shared_ptr<PublicationState>& publication, const Completion& retirement);
  /// As wait(), without interruption and errors. Does not wait on the loop's thread.
  void wait_for_end(const Completion& retirement) noexcept;

  ExchangeResult exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options);
  std::shared_ptr<ExchangeState> start_exchange(const Catalog& held, const Catalog& wanted, ExchangeOptions options);
  std::vector<Bytes> gather(const std::string& name, Bytes value, Duration timeout);
  void barrier(Duration timeout);
  JobLayout gather_layouts(const Catalog& catalog, Duration timeout);
  std::vector<PeerPath> paths(const std::string& from, Duration timeout);
  Inventory inventory(restore::InventoryTask::Request request);
  void close(Duration timeout);
  [[nodiscard]] SessionUsage usage() const;
  [[nodiscard]] Kept kept() const;
  /// The loop; a call in progress keeps it if the session is closed meanwhile. Errors: throws Error{invalid_argument}
  /// if the session is closed or belongs to another process.
  [[nodiscard]] std::shared_ptr<Loop> running() const;

  /// As the caller gave it, but for the run id. A guest learns its number and the job's size when it joins.
  const Bootstrap bootstrap;
  [[nodiscard]] int member() const { return member_; }
  [[nodiscard]] int world_size() const { return world_size_; }
  /// See wire::Joined. Requires: it has joined.
  [[nodiscard]] std::uint64_t session_number() const;
  std::shared_ptr<Fabrics> fabrics;     // owners: see RegisteredMemory
  std::shared_ptr<MemoryTable> memory;  // owners: this session and its core

 private:
  void end(Loop& loop, WallClock::time_point until);
  void make_metrics(const Telemetry& callbacks);
  void join_and_count(WallClock::time_point began);
  /// Keeps a trace from now on, if there is to be one. `began`: of the caller's call to join. Requires: it has joined.
  void begin_trace(WallClock::time_point began);
  /// A function that logs, from any thread.
  std::function<void(LogLevel level, const std::string& text)> logger();
  /// If they were asked for, keeps a file of the metrics from now on, and the port. Requires: the number of this member is known.
  void write_metrics();
  /// Publishes by `publish`, and counts how that ends, in the metrics and in the trace.
  std::shared_ptr<PublicationState> counted(const PublishOptions& options,
                                            support::FunctionRef<std::shared_ptr<PublicationState>()> publish);
  /// The parts of this session that an exchange uses. `started`: receives its progress; null: start_exchange() has not
  /// started it. Errors: as running().
  ExchangeContext exchange_context(const Interruption& interruption, ExchangeState* started);
  ExchangeResult counted_exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                                  const ExchangeContext& context);
  void make_core(const Surroundings& surroundings, Settings settings);
  /// Addresses of member 0, as far as the bootstrap gives them. Waits until its name is known. Errors: throws
  /// Error{timed_out} at the join timeout.
  [[nodiscard]] std::vector<SocketAddress> find_rendezvous(WallClock::time_point began);
  void use_job_key(const Bytes& key);
  void give_job_key(const Bytes& key);
  /// Errors: throws Error{unsupported} if nothing can encrypt, and bytes have to be.
  [[nodiscard]] const TlsModule* load_encryption(std::string& why_not) const;
  struct StartedRetirement {
    Retirement retirement;
    std::function<void(std::vector<int> readers)> retired;
  };
  [[nodiscard]] StartedRetirement retirement_of(const std::shared_ptr<PublicationState>& publication,
                                                const char* what) const;

  [[nodiscard]] std::vector<std::shared_ptr<PublicationState>> published() const;
  void list(const std::shared_ptr<PublicationState>& publication);
  void copy_and_wait(std::vector<memory::QueuedCopy> copies);
  std::vector<Digest128> digest_and_wait(std::vector<memory::QueuedCopy> blocks);
  /// `exchange`: has checked aliasing; empty: there is none around the restore. `only`: the publication to read from, for
  /// a copy of it that is not the caller's; empty: all. `digests`: see restore::Request.
  std::shared_ptr<RestoreState> restore(const Catalog& wanted, RestoreOptions options, const Interruption& interruption,
                                        std::optional<restore::InExchange> exchange,
                                        std::optional<wire::PublicationRecord> only = std::nullopt,
                                        std::shared_ptr<BlockDigests> digests = nullptr);
  void resume(const std::shared_ptr<RestoreState>& state, restore::Request request);
  void post(Loop& loop, const std::shared_ptr<RestoreState>& state, restore::Request request,
            WallClock::time_point began, double join_seconds);
  /// A gather of the public call of that name. The value of this member counts while it waits.
  std::vector<Bytes> gather_in(const char* call, const Bytes& value, Duration timeout);
  ExchangeResult run_exchange(const Catalog& held, const Catalog& wanted, const ExchangeOptions& options,
                              const ExchangeContext& context);
  std::shared_ptr<PublicationState> publish(const Catalog& held, const PublishOptions& options,
                                            const Interruption& interruption);
  /// `keeping`: set if the keeper holds it from now on; to be settled once it is published.
  std::shared_ptr<PublicationState> describe_publication(const Catalog& held, const PublishOptions& options,
                                                         const Interruption& interruption,
                                                         std::optional<Keeping>& keeping);
  [[nodiscard]] wire::KeepBegin keep_begin(const Catalog& held, const PublishOptions& options) const;
  void meet_keeper();
  /// For the first publication with buddies, makes them.
  BuddyCopies& buddies();
  /// Null: there are none yet.
  [[nodiscard]] BuddyCopies* made_buddies() const;
  void say_copied(const PublicationState& of);
  void refuse_aliasing(const Catalog& wanted);
  void require_member(const char* call) const;
  void abandon();
  /// As running(), for a call that waits for the session's thread. Errors: throws Error{unsupported} on that thread.
  [[nodiscard]] std::shared_ptr<Loop> waiting_in(const char* call) const;
  /// Tells whether its caller is on the session's thread.
  [[nodiscard]] std::function<bool()> on_loop() const;
  /// Null if running() throws.
  [[nodiscard]] std::shared_ptr<Loop> open_loop() const;

  support::OwningProcess owner_;
  const Interruption interruption_;  // of waits in calls of the caller
  const std::function<const TlsModule*(std::string& why_not)> load_tls_;
  const StartThread start_thread_;
  const Collectives collectives_;
  std::shared_ptr<Loop> loop_;  // before core_: the core lives on it; owners: see running(); guarded by mutex_
  std::unique_ptr<Core> core_;  // loop thread only
  std::atomic<int> member_;
  std::atomic<int> world_size_;
  std::atomic<std::uint64_t> next_generation_{1};
  std::atomic<std::uint64_t> next_exchange_{1};  // above those of all exchanges that this member took part in
  bool has_keeper_ = false;
  KeptMemory kept_memory_;
  std::unique_ptr<BuddyCopies> buddies_;  // null: nothing was published with buddies; made under mutex_
  std::map<std::string, std::shared_ptr<PublicationState>> said_copied_;  // by name; of the thread of buddies_
  Duration join_timeout_{};
  bool encrypt_payload_ = false;
  std::atomic<double> join_seconds_{0};  // until the first restore has taken it
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<PublicationState>> published_;          // guarded by mutex_
  std::map<std::string, wire::KeepBegin::Restored> last_restored_;  // by name; guarded by mutex_
  std::optional<Catalog> checked_;                                  // the last one found disjoint; guarded by mutex_
  std::vector<std::uint64_t> checked_against_;                      // from publications of these generations; likewise
  bool rounds_unasked_ = false;                                     // the transports were not named
  TimedLock::State exchanges_;
  KeptGroup kept_group_;                         // of the exchange that holds the lock
  telemetry::MetricsServer::Setup metrics_at_;   // no folder: nobody asked for metrics; no port: nor for that
  std::shared_ptr<telemetry::Metrics> metrics_;  // null: nobody asked; owners: this session and what runs in it
  std::unique_ptr<telemetry::MetricsFile> metrics_file_;
  std::unique_ptr<telemetry::MetricsServer> metrics_server_;
  std::string trace_file_;
  std::shared_ptr<telemetry::Trace> trace_;  // as metrics_
};

}  // namespace shardwire::detail
