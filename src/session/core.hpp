// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/membership.hpp"
#include "control/operation.hpp"
#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "move/engine.hpp"
#include "paths/fabric_driver.hpp"
#include "paths/path_choice.hpp"
#include "peers/keeper_link.hpp"
#include "peers/link_table.hpp"
#include "restore/context.hpp"
#include "restore/descriptions.hpp"
#include "restore/parked_attempt.hpp"
#include "serve/memory_table.hpp"
#include "serve/publisher.hpp"
#include "session/acceptor.hpp"
#include "session/keeping.hpp"
#include "session/settings.hpp"

namespace shardwire {

/// Counts of objects that a session keeps for readers and for running operations. All are 0 once nothing runs any more.
struct Kept {
  std::size_t restores = 0;
  std::size_t leases = 0;    ///< of readers on publications of this member
  std::size_t reads = 0;     ///< that this member makes for readers
  std::size_t requests = 0;  ///< to sources, without an answer
  std::size_t watchers = 0;  ///< of links to sources
  std::size_t names = 0;     ///< whose publishers an operation follows
  std::size_t gathers = 0;   ///< of this member, and at member 0 those of others that wait
  std::size_t slots = 0;     ///< of staging, with bytes for readers

  bool operator==(const Kept&) const = default;
};

/// All parts of a session that live on its loop: connections, membership, publications, running operations.
/// Threads: made, used and destroyed on the loop's thread.
class Core : private Membership::Host {
 public:
  struct Setup {
    Bootstrap bootstrap;
    Settings options;
    Identity identity;
    std::shared_ptr<Fabrics> fabrics;               // owners: see RegisteredMemory
    std::shared_ptr<MemoryTable> memory;            // owners: this core and the session's handle
    restore::Probe* probe = nullptr;                // see Surroundings
    std::shared_ptr<telemetry::Metrics> metrics{};  // null: nobody asked; owners: see SessionState
  };

  Core(Loop& loop, Setup setup);
  ~Core() override { end(); }
  /// Ends every operation: from now on nothing writes into a destination. Callbacks of theirs still find the core, unless
  /// the destructor does it.
  void end();

  /// For connections from now on. `tls`: encrypts them; null: nothing does.
  void use_job_key(const Bytes& key, const TlsModule* tls) {
    setup_.identity.job_key = key;
    setup_.identity.tls = tls;
  }
  void publish(std::shared_ptr<detail::PublicationState> publication);
  void withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                std::function<void(std::vector<int>)> done);
  /// The timeout of a running withdraw() or replace() of `publication` passes now.
  void end_retirement(const detail::PublicationState& publication) { publisher_->end_retirement(publication); }
  /// Publishes `fresh` in place of `old`, which is withdrawn; see Publisher::replace.
  void replace(const std::shared_ptr<detail::PublicationState>& old, std::shared_ptr<detail::PublicationState> fresh,
               Duration timeout, std::function<void(std::vector<int>)> done);
  void start(std::unique_ptr<Operation> operation);
  void finished(Operation& operation);
  /// Stops an operation without a wait for its peers: from now on nothing writes into its destination. It may end by that.
  void stop_writing(Operation& operation);
  /// Tells `changed` of every change of the directory, until it is null again.
  void on_directory_changed(std::function<void()> changed) { directory_changed_ = std::move(changed); }
  /// Sends an orderly goodbye on every connection.
  void leave();

  /// Runs `task` in a later iteration of the loop, unless the core is gone by then. From any thread.
  void defer(std::function<void()> task) override;

  // --- the keeper of this host ---
  /// The keeper knows of this session once `met` has run without an error. Requires: a keeper was named.
  void meet_keeper(std::function<void(const std::exception_ptr& error)> met);
  [[nodiscard]] KeeperLink& keeper() { return *keeper_; }
  [[nodiscard]] KeptCopies& copies_of_others() { return copies_of_others_; }
  /// Tells the keeper that members have been lost, and which copies are of what they published.
  void report_losses();

  // --- for restores ---
  [[nodiscard]] Loop& loop() { return loop_; }
  [[nodiscard]] Membership& membership() { return membership_; }
  [[nodiscard]] const Directory& directory() const { return membership_.directory(); }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] FabricDriver& driver() { return *driver_; }
  [[nodiscard]] memory::DeviceCopies& copies() { return *copies_; }
  [[nodiscard]] int member() const { return setup_.bootstrap.rank; }
  /// A random number of the session, the same on all members; 0 until this one has joined.
  [[nodiscard]] std::uint64_t session_number() const { return session_number_; }
  /// See Membership::Host::seated. Requires: this member has joined.
  [[nodiscard]] Clock::Time session_began() const { return began_; }
  [[nodiscard]] const restore::Context& context() const { return *context_; }
  /// Receives the spans of restores from now on. Ownership: borrowed.
  void use_trace(telemetry::Trace* trace) { trace_ = trace; }
  void log(LogLevel level, const std::string& text) override;
  /// Logs warnings of the fabrics.
  void log_warnings();
  [[nodiscard]] Kept kept() const;

 private:
  void directory_changed() override;
  void seated(const wire::Joined& as, Clock::Time began) override;
  void addresses_came(const wire::Addresses& addresses) override;
  void attempt_raised(std::uint32_t attempt) override;
  void rendezvous_lost(const Error& reason) override { links_.end_waiting(reason); }

  void poll_copies();
  void report_log_failure();
  void warn_once(const std::string& topic, const std::string& text);  // see restore::Context
  [[nodiscard]] restore::SessionFacts facts() const;
  /// Frees remains of earlier restores that no later one can use, now and when due.
  void sweep();
  void serve(Connection& connection, const wire::Message& message);
  /// The connection becomes a socket for a fabric.
  void attach(Connection& connection, const wire::Attach& attach);
  void announce(const detail::PublicationState& publication, bool live);
  /// Makes progress until nothing writes into these destinations any more, for at most a second.
  void end_receives(const std::function<bool()>& written);

  Loop& loop_;
  Setup setup_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this core; deferred tasks hold weak ones
  Acceptor acceptor_;
  Membership membership_;
  restore::Metadata metadata_;
  move::PayloadTable payloads_;
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<memory::DeviceCopies> copies_;  // on the copier's threads, and on devices
  FabricTable fabric_table_;
  std::unique_ptr<FabricDriver> driver_;
  AttachedSockets attached_;
  LinkTable links_;
  std::unique_ptr<Publisher> publisher_;
  restore::RestoreCache restore_cache_;
  Timer sweep_timer_;
  std::optional<restore::Context> context_;  // set once its parts are there
  std::vector<std::unique_ptr<Operation>> operations_;
  std::function<void()> directory_changed_;  // of a running exchange; null: none
  std::uint64_t session_number_ = 0;
  Clock::Time began_{};                  // when the session did, see Membership::Host::seated
  std::uint32_t attempt_ = 0;            // see wire::AttemptRaised
  std::unique_ptr<KeeperLink> keeper_;   // null: none was named
  std::uint64_t met_in_connection_ = 0;  // of keeper_
  KeptCopies copies_of_others_;
  std::size_t losses_told_ = 0;  // to keeper_
  bool polling_copies_ = false;
  telemetry::Trace* trace_ = nullptr;  // null: nobody asked
  std::exception_ptr log_failure_;     // kept until a restore has ended with it
  std::set<std::string> warned_;       // topics
};

}  // namespace shardwire
