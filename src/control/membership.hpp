// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/connection.hpp"
#include "control/directory.hpp"
#include "control/gathers.hpp"
#include "control/rendezvous.hpp"
#include "shardwire/bootstrap.hpp"

namespace shardwire {

/// This member's place in the job: joins, keeps the rendezvous's information on other members, and runs the rendezvous
/// on member 0.
/// Threads: loop thread only.
class Membership {
 public:
  /// The members whose connections this process accepted; member 0 serves the rendezvous to them.
  class Clients {
   public:
    virtual ~Clients() = default;
    /// Accepts members at `at` from now on, in addition to earlier addresses of other hosts; returns the port.
    virtual std::uint16_t listen(const SocketAddress& at) = 0;
    /// Also listens on a local name and returns it; empty if nothing could use it.
    virtual std::string listen_locally() = 0;
    /// Sends to a member whose connection was accepted here; does nothing if it is gone.
    virtual void send_to(Rendezvous::ClientId client, const Bytes& encoded) = 0;
    /// Sends a message that the member has not requested, see Connection::notify().
    virtual void notify(Rendezvous::ClientId client, const Bytes& encoded) = 0;
    /// Whether the member still answers, see Connection::check_alive(); false for one that is gone.
    virtual void check_alive(Rendezvous::ClientId client, Connection::Verdict verdict) = 0;
    /// Closes the connection of a member, with a reason sent to it.
    virtual void dismiss(Rendezvous::ClientId client, const Error& why) = 0;
    /// Runs `task` for that member later, unless it is gone; an exception of the task becomes the reply to the member.
    virtual void serve_later(Rendezvous::ClientId client, const std::function<void()>& task) = 0;
  };
  /// Calls into the surrounding session.
  class Host {
   public:
    virtual ~Host() = default;
    /// Publications or presence have changed, or can no longer be known.
    virtual void directory_changed() = 0;
    /// This process has got its place, and is about to hear that it has joined. `began`: when the session began, by the clock of
    /// this process. It did not begin later, and earlier by at most the time that the answer of member 0 took.
    virtual void seated(const wire::Joined& as, Clock::Time began) = 0;
    virtual void addresses_came(const wire::Addresses& addresses) = 0;
    /// See wire::AttemptRaised.
    virtual void attempt_raised(std::uint32_t attempt) = 0;
    virtual void rendezvous_lost(const Error& reason) = 0;
    virtual void defer(std::function<void()> task) = 0;
    virtual void log(LogLevel level, const std::string& text) = 0;
  };
  using Joined = std::function<void(std::exception_ptr)>;
  /// A member that has waited this long for member 0 logs whom it waits for.
  static constexpr std::chrono::seconds log_after{2};

  /// Ownership: borrows all arguments.
  Membership(Loop& loop, Host& host, Clients& clients, const Bootstrap& bootstrap, const Identity& identity);
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// Calls `joined` once the rendezvous knows this member, or with the error that prevents it. `rendezvous`, not empty:
  /// member 0 listens on all of these addresses, with port 0 for a port chosen by the system; other members contact the
  /// first that answers.
  void join(std::vector<SocketAddress> rendezvous, Duration timeout, Joined joined);
  /// The rendezvous is at these addresses instead. Does nothing once the member has joined.
  void rendezvous_moved(std::vector<SocketAddress> rendezvous);
  /// Includes the ports that the system has chosen.
  [[nodiscard]] const std::vector<SocketAddress>& rendezvous() const { return rendezvous_at_; }
  /// Of these, the one at which this member reaches member 0.
  [[nodiscard]] const SocketAddress& contact() const { return contact_; }
  /// Sends a goodbye to the rendezvous.
  void leave();

  /// Sends to the rendezvous, remote or in this process.
  void send(const wire::Message& message);
  /// Serves a member. Errors: throws Error{invalid_argument} if the rendezvous is not here, or refuses.
  void serve(const Connection& member, const wire::Message& message);
  void closed(const Connection& member, bool orderly);

  [[nodiscard]] const Directory& directory() const { return directory_; }
  /// A name whose roster is kept up to date while copies of the handle are left. Some names that are needed no more stay
  /// watched, because restores of one name follow one another.
  using Watch = std::shared_ptr<const void>;  // owners: the operations that need the name
  /// Errors: throws Error{peer_lost} if the name is unknown and the rendezvous is lost, Error{out_of_resources} if too
  /// many names are watched.
  [[nodiscard]] Watch watch(const std::string& name);
  /// Names of which a watch is held.
  [[nodiscard]] std::size_t needed_names() const;
  /// Errors: throws Error{peer_lost}, naming `what` as unknowable, if the rendezvous is lost.
  void require_rendezvous(const std::string& what) const;
  /// Why no further information on other members arrives; null while the rendezvous is reachable.
  [[nodiscard]] const Error* lost() const { return lost_ ? &*lost_ : nullptr; }
  /// As Gathers::start().
  std::uint64_t gather(const std::string& name, const Bytes& value, Gathers::Kind kind, Duration timeout,
                       Gathers::Done done);
  void quit_gather(std::uint64_t request) { gathers_.quit(request); }
  /// Gathers that this member waits for, and on member 0 the waits of all members.
  [[nodiscard]] std::size_t waiting_gathers() const {
    return gathers_.count() + (rendezvous_ ? rendezvous_->waiting_gathers() : 0);
  }

 private:
  /// Reason of a failed attempt to join.
  struct FailedAttempt {
    SocketAddress at;
    std::string why;
    bool answered = false;  // a process there has refused
  };

  void connect();
  void try_next();
  /// Handles a failed attempt. `answered`: a process there has refused this member.
  void not_joined(const Error& reason, bool answered);
  void time_out(Duration after);
  void log_wait();
  void announce(const SocketAddress& at);
  void listen_as_rendezvous();
  /// Ends joining with the error `taken`, extended by the process that has the port.
  void find_out_who_listens(const Error& taken);
  /// A member requests a seat that another process holds: it gets the seat if that process does not answer.
  void claim(const Connection& member, const wire::Join& join, Rendezvous::ClientId holder);
  void log_received(int member, const wire::Message& message) const;
  /// Sends the pending messages of the rendezvous in this process, now or when they are due.
  void flush();
  void deliver(std::span<const Rendezvous::ClientId> clients, const wire::Message& message);
  void receive(const wire::Message& message);
  void joined(const wire::Joined& as);
  void warn_of_open_network(const std::string& host);
  [[nodiscard]] bool expects(const wire::Roster& roster) const;
  void end_watch(const std::string& name);
  void end_joining(const std::exception_ptr& error);
  void ended(const Error& reason, bool orderly);

  Loop& loop_;
  Host& host_;
  Clients& clients_;
  const Bootstrap& bootstrap_;
  const Identity& identity_;
  Directory directory_;
  Gathers gathers_;
  std::optional<Rendezvous> rendezvous_;    // member 0 only
  std::unique_ptr<Timer> flush_timer_;      // with rendezvous_
  std::shared_ptr<Connection> connection_;  // to the rendezvous; null on member 0. Owners: this and its own callbacks
  std::optional<Error> lost_;               // reason why the rendezvous is lost
  std::map<std::string, std::weak_ptr<const void>> watched_;    // names that the rendezvous sends the rosters of
  std::list<std::string> unneeded_;                             // of watched_: the latest last
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // owners: this; handles of watches hold weak ones
  Joined joined_;
  std::vector<SocketAddress> rendezvous_at_;
  std::size_t tried_ = 0;                // attempts at these
  SocketAddress contact_;                // of these: the last one tried
  std::string listening_host_;           // numeric
  Clock::Time asked_{};                  // when the request to join left
  std::shared_ptr<Connection> inquiry_;  // to the process on this rendezvous's port. Owners: as connection_
  Timer join_timer_;
  Timer retry_timer_;
  Timer log_timer_;
  std::optional<FailedAttempt> failed_attempt_;  // the last refusal, else the last attempt
};

}  // namespace shardwire
