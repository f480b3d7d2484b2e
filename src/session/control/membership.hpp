// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "session/control/connection.hpp"
#include "session/control/directory.hpp"
#include "session/control/gathers.hpp"
#include "session/control/rendezvous.hpp"
#include "shardwire/bootstrap.hpp"

namespace shardwire {

/// This member's place in the job: joins, keeps what the rendezvous says of the others, and serves the rendezvous itself on
/// member 0.
/// Threads: loop thread only.
class Membership {
 public:
  /// What it needs of the session around it.
  class Host {
   public:
    virtual ~Host() = default;
    /// Accepts members there from now on, beside other hosts' addresses that it was called with; returns the port.
    virtual std::uint16_t listen(const SocketAddress& at) = 0;
    /// And on a local name, which is returned; empty where nobody could make use of that.
    virtual std::string listen_locally() = 0;
    /// To a member whose connection was accepted here; nothing when that is gone.
    virtual void send_to(Rendezvous::ClientId client, const Bytes& encoded) = 0;
    /// The same for what it has not asked for, see Connection::notify().
    virtual void notify(Rendezvous::ClientId client, const Bytes& encoded) = 0;
    /// Whether that member still answers, see Connection::check_alive(); one that is gone does not.
    virtual void check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) = 0;
    /// Closes the connection of a member that is told why.
    virtual void dismiss(Rendezvous::ClientId client, const Error& why) = 0;
    /// Runs `task` for that member, unless it is gone; what the task throws is the member's answer.
    virtual void serve_later(Rendezvous::ClientId client, const std::function<void()>& task) = 0;
    /// Who publishes what, or who is there, has changed; or it cannot be known any more.
    virtual void directory_changed() = 0;
    virtual void addresses_came(const wire::Addresses& addresses) = 0;
    virtual void rendezvous_lost(const Error& reason) = 0;
    virtual void defer(std::function<void()> task) = 0;
    virtual void log(LogLevel level, const std::string& text) = 0;
  };
  using Joined = std::function<void(std::exception_ptr)>;

  /// Ownership: borrows all.
  Membership(Loop& loop, Host& host, const Bootstrap& bootstrap, const Identity& identity);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Calls `joined` once the rendezvous knows this member, or with what stands in the way.
  /// `rendezvous`: where member 0 listens, on all of these and with port 0 where the system may choose; where the others find
  /// it, on the first of these that answers. Not empty.
  void join(std::vector<SocketAddress> rendezvous, Duration timeout, Joined joined);
  /// It is to be found there instead. Nothing for a member that has joined.
  void rendezvous_moved(std::vector<SocketAddress> rendezvous);
  /// With the ports that the system has chosen.
  [[nodiscard]] const std::vector<SocketAddress>& rendezvous() const { return rendezvous_at_; }
  /// Says goodbye to the rendezvous.
  void leave();

  /// To the rendezvous, wherever it is.
  void send(const wire::Message& message);
  /// Serves a member. Errors: throws Error{invalid_argument} where the rendezvous is not here, or refuses.
  void serve(const Connection& member, const wire::Message& message);
  void closed(const Connection& member, bool orderly);

  [[nodiscard]] const Directory& directory() const { return directory_; }
  /// Has the roster of `name` kept up to date. Errors: throws Error{peer_lost} when it is not known and the rendezvous is
  /// lost.
  void watch(const std::string& name);
  /// Errors: throws Error{peer_lost} saying that `what` can no longer be known, when the rendezvous is lost.
  void require_rendezvous(const std::string& what) const;
  /// Why nothing further is heard of the others; null while the rendezvous is there.
  [[nodiscard]] const Error* lost() const { return lost_ ? &*lost_ : nullptr; }
  void gather(const std::string& name, const Bytes& value, Duration timeout, Gathers::Done done);

 private:
  /// Why an attempt to join has failed.
  struct FailedAttempt {
    SocketAddress at;
    std::string why;
    bool answered = false;  // somebody is there, and has refused
  };

  void connect();
  void try_next();
  /// An attempt has failed. `answered`: somebody there has refused this member.
  void not_joined(const Error& reason, bool answered);
  void time_out(Duration after);
  void announce(const SocketAddress& at);
  void listen_as_rendezvous();
  /// Ends joining with what `taken` says and who has the port.
  void find_out_who_listens(const Error& taken);
  /// A member comes for a seat that another process has: it gets it if that one does not answer.
  void claim(const Connection& member, const wire::Join& join, Rendezvous::ClientId holder);
  void told(int member, const wire::Message& message) const;
  /// Sends what the rendezvous in this process has for others, now or when it is due.
  void flush();
  void deliver(std::span<const Rendezvous::ClientId> clients, const wire::Message& message);
  void receive(const wire::Message& message);
  void joined();
  void warn_of_empty_key(const std::string& host);
  void end_joining(const std::exception_ptr& error);
  void ended(const Error& reason, bool orderly);

  Loop& loop_;
  Host& host_;
  const Bootstrap& bootstrap_;
  const Identity& identity_;
  Directory directory_;
  Gathers gathers_;
  std::optional<Rendezvous> rendezvous_;    // member 0 only
  std::unique_ptr<Timer> flush_timer_;      // with rendezvous_
  std::shared_ptr<Connection> connection_;  // to the rendezvous; null on member 0. Owners: this and its own callbacks
  std::optional<Error> lost_;               // what ended that
  std::set<std::string> watched_;
  Joined joined_;
  std::vector<SocketAddress> rendezvous_at_;
  std::size_t tried_ = 0;                // attempts at these
  SocketAddress contact_;                // of these: the last one tried
  std::string listening_host_;           // numeric
  std::shared_ptr<Connection> inquiry_;  // to who has the port of this rendezvous. Owners: as connection_
  Timer join_timer_;
  Timer retry_timer_;
  std::optional<FailedAttempt> failed_attempt_;  // the last one; the last refusal, if there was any
};

}  // namespace shardwire
