// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "memory/copier.hpp"
#include "session/arena_table.hpp"
#include "session/directory.hpp"
#include "session/fabric_driver.hpp"
#include "session/link.hpp"
#include "session/publisher.hpp"
#include "session/rendezvous.hpp"

namespace shardwire {

class RestoreRun;
struct KeptRestore;

/// Everything of a session that lives on its loop: connections, membership, publications, running restores.
/// Threads: made, used and destroyed on the loop's thread.
class Core {
 public:
  struct Setup {
    Bootstrap bootstrap;
    SessionOptions options;
    Identity identity;
    std::shared_ptr<transport::Fabric> fabric;  // owners: see ArenaState
    std::shared_ptr<ArenaTable> arenas;         // owners: this core and the session's handle
  };
  using Joined = std::function<void(std::exception_ptr)>;

  Core(Loop& loop, Setup setup);
  ~Core();

  /// Calls `joined` once the rendezvous knows this member, or with what stands in the way.
  void join(Joined joined);
  void publish(std::shared_ptr<detail::PublicationState> publication);
  void withdraw(const std::shared_ptr<detail::PublicationState>& publication, Duration timeout,
                std::function<void(std::vector<int>)> done);
  void gather(const std::string& name, const Bytes& value, Duration timeout,
              std::function<void(std::vector<Bytes>, std::exception_ptr)> done);
  void start(std::unique_ptr<RestoreRun> run);
  void finished(RestoreRun& run);
  /// Says goodbye to everyone.
  void leave();

  /// Runs `task` on a later turn of the loop, unless the core is gone by then. From any thread.
  void defer(std::function<void()> task);

  // --- for restores ---
  [[nodiscard]] Loop& loop() { return loop_; }
  [[nodiscard]] const Directory& directory() const { return directory_; }
  [[nodiscard]] Publisher& publisher() { return *publisher_; }
  [[nodiscard]] memory::Copier& copier() { return *copier_; }
  [[nodiscard]] transport::Fabric& fabric() { return *setup_.fabric; }
  [[nodiscard]] const ArenaTable& arenas() const { return *setup_.arenas; }
  [[nodiscard]] const CostModel& costs() const { return setup_.options.costs; }
  [[nodiscard]] const Bootstrap& bootstrap() const { return setup_.bootstrap; }
  /// Has the roster of `name` kept up to date. Errors: throws Error{peer_lost} when it is not known and the rendezvous is
  /// lost.
  void watch(const std::string& name);
  /// Errors: throws Error{peer_lost} saying that `what` can no longer be had, when the rendezvous is lost.
  void require_rendezvous(const std::string& what) const;
  /// The connection to a source, made when there is none, once its address has come. Errors: throws Error{peer_lost}.
  std::shared_ptr<Link> link(const wire::PublicationRecord& record);
  /// Manifests and values by digest, kept once learnt.
  std::map<wire::Digest, std::shared_ptr<const Manifest>> manifests;  // owners: see DescribedCatalog
  std::map<wire::Digest, std::vector<wire::NamedValue>> values;
  /// What an earlier restore of such a catalog has left, for one user at a time; null when there is nothing.
  std::unique_ptr<KeptRestore> take_kept(const std::string& from, const Catalog& wanted);
  void keep(std::unique_ptr<KeptRestore> kept);
  void log(LogLevel level, const std::string& text) const;

 private:
  struct Gather {
    std::string name;
    std::uint64_t request;
    std::function<void(std::vector<Bytes>, std::exception_ptr)> done;
    std::unique_ptr<Timer> timer;
    bool quitting = false;  // the rendezvous was asked who is missing
  };

  void listen(const SocketAddress& at);
  void accept(uv_stream_t* listener);
  void serve(Connection& connection, const wire::Message& message);
  void connect_to_rendezvous();
  void announce(const std::string& host);
  void announce(const detail::PublicationState& publication, bool live);
  void tell_rendezvous(const wire::Message& message);
  /// Sends what the rendezvous in this process has for others, now or when it is due.
  void flush_rendezvous();
  void deliver(std::span<const Rendezvous::ClientId> clients, const wire::Message& message);
  void hear(const wire::Message& message);
  void joined_as(const wire::Joined& joined);
  void directory_changed();
  void look_up(const wire::PublicationRecord& record, const std::shared_ptr<Link>& link);
  void send_lookup();
  /// Connects the links that wait for this member's address, or ends them when it is `absent`.
  void connect_waiting(int member, const Error* absent);
  void gather_times_out(std::uint64_t request);
  void absent_from_gather(const wire::GatherAbsent& absent);
  void gather_refused(const wire::Failure& failure);
  std::vector<Gather>::iterator find_gather(std::uint64_t request);
  void end_gather(std::vector<Gather>::iterator gather, const std::vector<Bytes>& gathered,
                  const std::exception_ptr& error);
  /// Ends every gather of that name, or those of them that have timed out.
  void end_gathers(const std::string& name, const std::vector<Bytes>& gathered, const std::exception_ptr& error,
                   bool quitting_only = false);
  void end_all_gathers(const Error& error);
  void rendezvous_ended(const Error& reason, bool orderly);
  void payload_arrived(transport::Incoming& incoming);
  void end_receives();

  Loop& loop_;
  Setup setup_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this core; deferred tasks hold weak ones
  std::unique_ptr<memory::Copier> copier_;
  std::unique_ptr<FabricDriver> driver_;
  std::unique_ptr<Publisher> publisher_;
  Directory directory_;
  std::optional<Rendezvous> rendezvous_;  // member 0 only
  std::shared_ptr<Connection> store_;     // owners: this core and its own callbacks; null on member 0
  std::optional<Error> store_lost_;
  std::unique_ptr<Timer> flush_timer_;  // with rendezvous_
  std::set<std::string> watched_;
  // Links that wait for the address of a member in some turn. Owners: the links' owners.
  std::map<int, std::vector<std::pair<std::uint32_t, std::weak_ptr<Link>>>> unresolved_;
  std::vector<std::int32_t> to_look_up_;
  std::unique_ptr<Listener> listener_;
  std::map<std::uint64_t, std::shared_ptr<Connection>> accepted_;  // owners: this table and requests in flight
  // By member and turn. Owners: this table and restores that read from the peer.
  std::map<std::pair<int, std::uint32_t>, std::shared_ptr<Link>> links_;
  std::vector<Gather> gathers_;
  std::uint64_t next_gather_ = 1;
  std::vector<std::unique_ptr<RestoreRun>> restores_;
  std::vector<std::unique_ptr<KeptRestore>> kept_;  // latest last
  Joined joined_;
  std::string rendezvous_host_;  // numeric
  std::unique_ptr<Timer> join_timer_;
  std::unique_ptr<Timer> retry_timer_;
  std::string last_refusal_;
};

}  // namespace shardwire
