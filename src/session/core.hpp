// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "memory/copier.hpp"
#include "memory/device_copies.hpp"
#include "session/control/link_table.hpp"
#include "session/control/listener.hpp"
#include "session/control/membership.hpp"
#include "session/control/unproven.hpp"
#include "session/fabric_driver.hpp"
#include "session/path_choice.hpp"
#include "session/restore/cached_restore.hpp"
#include "session/restore/metadata.hpp"
#include "session/running_restore.hpp"
#include "session/settings.hpp"
#include "session/source/memory_table.hpp"
#include "session/source/publisher.hpp"

namespace shardwire {

/// Everything of a session that lives on its loop: connections, membership, publications, running restores.
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
  /// Shows `fresh` instead of `old`, which is withdrawn; see Publisher::replace.
  void replace(const std::shared_ptr<detail::PublicationState>& old, std::shared_ptr<detail::PublicationState> fresh,
               Duration timeout, std::function<void(std::vector<int>)> done);
  void start(std::unique_ptr<RunningRestore> restore);
  void finished(RunningRestore& restore);
  /// Says goodbye to everyone.
  void leave();

  /// Runs `task` on a later turn of the loop, unless the core is gone by then. From any thread.
  void defer(std::function<void()> task) override;

  // --- for restores ---
  [[nodiscard]] Loop& loop() { return loop_; }
  [[nodiscard]] Membership& membership() { return membership_; }
  [[nodiscard]] const Directory& directory() const { return membership_.directory(); }
  [[nodiscard]] LinkTable& links() { return links_; }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] memory::Copier& copier() { return *copier_; }
  [[nodiscard]] memory::DeviceCopies& copies() { return *copies_; }
  [[nodiscard]] const Fabrics& fabrics() const { return *setup_.fabrics; }
  /// By index in fabrics().
  [[nodiscard]] std::span<const FabricTraits> traits() const { return traits_; }
  [[nodiscard]] const MemoryTable& memory() const { return *setup_.memory; }
  [[nodiscard]] const CostModel& costs() const { return setup_.options.costs; }
  /// Also of host memory, from sources that can.
  [[nodiscard]] bool takes_tree_digests() const { return setup_.options.digest == memory::DigestKind::tree; }
  [[nodiscard]] int member() const { return setup_.bootstrap.rank; }
  [[nodiscard]] RestoreCache& restore_cache() { return restore_cache_; }
  [[nodiscard]] Metadata& metadata() { return metadata_; }
  void log(LogLevel level, const std::string& text) override;
  /// What fabrics have to say to people.
  void log_warnings();

 private:
  std::uint16_t listen(const SocketAddress& at) override;
  std::string listen_locally() override;
  void send_to(Rendezvous::ClientId client, const Bytes& encoded) override;
  void notify(Rendezvous::ClientId client, const Bytes& encoded) override;
  void check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) override;
  void dismiss(Rendezvous::ClientId client, const Error& why) override;
  void serve_later(Rendezvous::ClientId client, const std::function<void()>& task) override;
  void directory_changed() override;
  void addresses_came(const wire::Addresses& addresses) override { links_.receive(addresses); }
  void rendezvous_lost(const Error& reason) override { links_.end_waiting(reason); }

  void report_log_failure();
  /// Gives back what earlier restores have left and no later one can use, now and when it is due.
  void sweep();
  void accept(support::Descriptor socket);
  /// The connection becomes a socket for a fabric.
  void attach(Connection& connection, const wire::Attach& attach);
  void make_room_for_connection();
  void drop_unproven(Unproven::Id id);
  void serve(Connection& connection, const wire::Message& message);
  void log_refusal(const Connection& connection, const std::string& text);
  /// Runs `task` for a member; what it throws is the answer to `request`.
  template <typename Task>
  void answer(Connection& connection, std::uint64_t request, Task task);
  void announce(const detail::PublicationState& publication, bool live);
  void payload_arrived(transport::Incoming& incoming);
  void end_receives();

  Loop& loop_;
  Setup setup_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this core; deferred tasks hold weak ones
  Membership membership_;
  Metadata metadata_;
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<memory::DeviceCopies> copies_;  // on the copier's threads, and on devices
  std::vector<FabricTraits> traits_;
  std::unique_ptr<FabricDriver> driver_;
  AttachedSockets attached_;
  LinkTable links_;
  std::unique_ptr<Publisher> publisher_;
  std::map<std::string, std::unique_ptr<Listener>> listeners_;     // by address of this host
  std::unique_ptr<Listener> local_listener_;                       // null where no fabric needs local sockets
  std::map<std::uint64_t, std::shared_ptr<Connection>> accepted_;  // owners: this table and requests in flight
  Unproven unproven_;                                              // of accepted_
  std::map<std::uint64_t, unsigned> refusals_;                     // of accepted_: those that were logged
  RestoreCache restore_cache_;
  Timer sweep_timer_;
  std::vector<std::unique_ptr<RunningRestore>> restores_;
  std::exception_ptr log_failure_;  // until a restore has ended with it
};

}  // namespace shardwire
