// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "control/membership.hpp"
#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "paths/fabric_driver.hpp"
#include "paths/path_choice.hpp"
#include "peers/link_table.hpp"
#include "restore/cached_restore.hpp"
#include "restore/metadata.hpp"
#include "restore/running_restore.hpp"
#include "serve/memory_table.hpp"
#include "serve/publisher.hpp"
#include "session/door.hpp"
#include "session/services.hpp"
#include "session/settings.hpp"

namespace shardwire {

/// All parts of a session that live on its loop: connections, membership, publications, running restores.
/// Threads: made, used and destroyed on the loop's thread.
class Core : private Membership::Host {
 public:
  struct Setup {
    Bootstrap bootstrap;
    Settings options;
    Identity identity;
    std::shared_ptr<Fabrics> fabrics;     // owners: see RegisteredMemory
    std::shared_ptr<MemoryTable> memory;  // owners: this core and the session's handle
  };

  Core(Loop& loop, Setup setup);
  ~Core() override;

  void publish(std::shared_ptr<detail::PublicationState> publication);
  void withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                std::function<void(std::vector<int>)> done);
  /// The timeout of a running withdraw() or replace() of `publication` passes now.
  void end_retirement(const detail::PublicationState& publication) { publisher_->end_retirement(publication); }
  /// Publishes `fresh` in place of `old`, which is withdrawn; see Publisher::replace.
  void replace(const std::shared_ptr<detail::PublicationState>& old, std::shared_ptr<detail::PublicationState> fresh,
               Duration timeout, std::function<void(std::vector<int>)> done);
  void start(std::unique_ptr<RunningRestore> restore);
  void finished(RunningRestore& restore);
  /// Sends an orderly goodbye on every connection.
  void leave();

  /// Runs `task` in a later iteration of the loop, unless the core is gone by then. From any thread.
  void defer(std::function<void()> task) override;

  // --- for restores ---
  [[nodiscard]] Loop& loop() { return loop_; }
  [[nodiscard]] Membership& membership() { return membership_; }
  [[nodiscard]] const Directory& directory() const { return membership_.directory(); }
  [[nodiscard]] LinkTable& links() { return links_; }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] FabricDriver& driver() { return *driver_; }
  [[nodiscard]] memory::Copier& copier() { return *copier_; }
  [[nodiscard]] memory::DeviceCopies& copies() { return *copies_; }
  [[nodiscard]] const Fabrics& fabrics() const { return *setup_.fabrics; }
  [[nodiscard]] const FabricTable& fabric_table() const { return fabric_table_; }
  [[nodiscard]] const MemoryTable& memory() const { return *setup_.memory; }
  [[nodiscard]] const CostModel& costs() const { return setup_.options.costs; }
  [[nodiscard]] int member() const { return setup_.bootstrap.rank; }
  [[nodiscard]] restore::RestoreCache& restore_cache() { return restore_cache_; }
  [[nodiscard]] restore::Metadata& metadata() { return metadata_; }
  [[nodiscard]] restore::Services& services() { return services_; }
  void log(LogLevel level, const std::string& text) override;
  /// Logs warnings of the fabrics.
  void log_warnings();

 private:
  void directory_changed() override;
  void addresses_came(const wire::Addresses& addresses) override { links_.receive(addresses); }
  void rendezvous_lost(const Error& reason) override { links_.end_waiting(reason); }

  void report_log_failure();
  /// Frees remains of earlier restores that no later one can use, now and when due.
  void sweep();
  void serve(Connection& connection, const wire::Message& message);
  /// The connection becomes a socket for a fabric.
  void attach(Connection& connection, const wire::Attach& attach);
  void announce(const detail::PublicationState& publication, bool live);
  void payload_arrived(transport::Incoming& incoming);
  void end_receives();

  Loop& loop_;
  Setup setup_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this core; deferred tasks hold weak ones
  Door door_;
  Membership membership_;
  restore::Metadata metadata_;
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<memory::DeviceCopies> copies_;  // on the copier's threads, and on devices
  FabricTable fabric_table_;
  std::unique_ptr<FabricDriver> driver_;
  AttachedSockets attached_;
  LinkTable links_;
  std::unique_ptr<Publisher> publisher_;
  restore::RestoreCache restore_cache_;
  Timer sweep_timer_;
  CoreServices services_{*this};
  std::vector<std::unique_ptr<RunningRestore>> restores_;
  std::exception_ptr log_failure_;  // kept until a restore has ended with it
};

}  // namespace shardwire
