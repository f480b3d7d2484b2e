// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "control/connection.hpp"
#include "paths/fabric_channel.hpp"
#include "paths/fabrics.hpp"
#include "paths/path_choice.hpp"
#include "peers/payload_sockets.hpp"
#include "peers/source_link.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// The reading side's connection to one source: requests and their answers, and the source's fabrics. Kept for the life
/// of the session, so that later restores can reuse endpoints and mapped regions.
/// Threads: loop thread only.
class Link final : public SourceLink {
 public:
  /// Link to a member whose address is still unknown: requests wait for connect(). `table`: of these fabrics.
  /// Ownership: borrows both.
  Link(const Fabrics& fabrics, const FabricTable& table, int rank)
      : fabrics_(fabrics), table_(table), rank_(rank), fabric_states_(fabrics.size()) {}
  ~Link();

  /// Ownership: borrows loop and identity. Errors: throws Error{out_of_resources}.
  void connect(Loop& loop, const wire::MemberRecord& member, const Identity& identity);
  /// Ends the link: the member has no address.
  void fail(const Error& reason) { ended(reason); }
  [[nodiscard]] bool broken() const override { return broken_.has_value(); }

  /// Sends with this end's proof if the source may read it before its own one (Connection::needs_no_proof()), else when
  /// the connection is ready. The answer is found by the request's number.
  void request(std::uint64_t number, const wire::Message& message, OnReply answer) override;
  /// Manifests and values are answered by digest.
  void request(const wire::Digest& digest, const wire::Message& message, OnReply answer) override;
  /// Descriptors that arrived for this request before its answer.
  std::vector<support::Descriptor> take_descriptors(std::uint64_t number) override;
  /// Drops interest in an answer, e.g. of a packed request whose payload has arrived.
  void forget(std::uint64_t number) override { by_number_.erase(number); }
  /// Sends a message that has no answer.
  void post(const wire::Message& message) override { send(message); }
  /// Aborts the connection and its endpoints; the link ends with `reason`.
  void abort(const Error& reason) override;
  /// Requires: the peer has answered.
  [[nodiscard]] const wire::Hello& peer() const override { return connection_->peer(); }
  /// The kernel vouches that the source is a process of this host, so descriptors can be handed over.
  [[nodiscard]] bool is_local() const override { return connection_ && connection_->is_local(); }
  /// Reason, for people, why it is not local.
  [[nodiscard]] const support::Fallback& why_not_local() const override { return why_not_local_; }
  void leave() {
    if (connection_) connection_->leave();
  }

  std::optional<Clock::Time> heard(std::chrono::nanoseconds quiet) override {
    return connection_ ? std::optional(connection_->heard(quiet)) : std::nullopt;
  }

  /// Watchers of this link's end, until they are removed.
  std::uint64_t watch(Broken broken) override;
  void unwatch(std::uint64_t watcher) override { watchers_.erase(watcher); }
  [[nodiscard]] std::size_t watchers() const override { return watchers_.size(); }
  /// Requests without an answer.
  [[nodiscard]] std::size_t requests() const { return by_number_.size() + by_digest_.size(); }

  // Fabrics, each by its index in Fabrics: prepare(), then a Bind with handle(), then channel() with the answer.

  /// Opens the sockets that the fabric needs, unless it is connected.
  void prepare(std::size_t fabric, Prepared prepared) override;
  /// Opens the sockets of the best fabric that both sides have, if it takes sockets of the network, as soon as the
  /// source has said hello.
  void prepare_ahead() override;
  /// The source reports that these sockets have ended: opens others, unless that was done meanwhile.
  void replace_sockets(std::size_t fabric, std::uint64_t sockets) override;
  /// The fabric does not carry what it promised: aborts this channel, and unless there is another by now, prepares
  /// none again.
  void rule_out(std::size_t fabric, FabricChannel& channel, const Error& why) override;
  /// Aborts all channels; an operation that needs one creates a new one.
  void abort_channels() override;
  /// The fabric's part of a Bind. Requires: it is prepared.
  [[nodiscard]] wire::FabricHandle handle(std::size_t fabric) const override;
  /// Channel to the source's fabric at `address`, created once, and anew after a failure; null if the sockets prepared
  /// for it are gone. Requires: it is prepared. Ownership: this link, until there is another; restores that are bound
  /// over it; regions.
  /// Errors: as Fabric::connect.
  std::shared_ptr<FabricChannel> channel(std::size_t fabric, const Bytes& address) override;
  [[nodiscard]] bool connected(std::size_t fabric) const {
    const auto& channel = fabric_states_[fabric].channel;
    return channel && !channel->endpoint->failed();
  }
  /// The source's region, imported once. Requires: the fabric has a channel. Errors: as Endpoint::import_region.
  std::shared_ptr<transport::RemoteRegion> region(std::size_t fabric, const Bytes& key, ByteCount size_bytes,
                                                  std::vector<support::Descriptor> descriptors) override;

  /// Records that this publication of the source is read through the regions with these keys. Releases regions used for
  /// it before, unless another publication of the source lies there.
  void bound(const std::string& publication, std::uint64_t generation, std::set<Bytes> keys) override;
  [[nodiscard]] bool is_bound(const std::string& publication, std::uint64_t generation) const override;
  /// Bound publications for which `live` returns false, with the bytes mapped for them.
  struct Idle {
    std::string publication;
    ByteCount bytes = 0;
  };
  [[nodiscard]] std::vector<Idle> idle(
      const std::function<bool(const std::string& publication, std::uint64_t generation)>& live) const;
  /// Releases regions that only this publication uses.
  void unbind(const std::string& publication);

 private:
  struct Binding {
    std::uint64_t generation = 0;
    std::set<Bytes> keys;
  };
  /// State of one fabric to the source.
  struct FabricState {
    std::uint64_t token = 0;  // of its sockets; 0: none were opened
    std::unique_ptr<OpeningSockets> opening;
    bool ahead = false;             // no operation has asked for these sockets yet
    std::vector<Prepared> waiting;  // for these sockets
    std::vector<transport::OpenSocket> sockets;
    Clock::Time opened_at{};
    Bytes address;
    std::shared_ptr<FabricChannel> channel;  // owners: see channel()
    std::optional<Error> ruled_out;
    std::map<Bytes, std::shared_ptr<transport::RemoteRegion>> regions;  // owners: this cache and restores that read
  };
  void dial();
  void open_ahead();
  void open_sockets(std::size_t fabric);
  void close_unused();
  void sockets_opened(std::size_t fabric, std::vector<transport::OpenSocket> sockets, const Error* why_not);
  void take_descriptors_in(Connection& connection, const wire::Descriptors& message);
  void drop_unbound(const std::set<Bytes>& keys);
  void send(const wire::Message& message);
  void send_waiting(Connection& connection) const;
  /// Requests go with this end's proof. Of one connection, always or never.
  [[nodiscard]] bool sends_early(const Connection& connection) const;
  void answered(wire::Message& message);
  void ended(const Error& reason);

  const Fabrics& fabrics_;
  const FabricTable& table_;
  int rank_;
  Loop* loop_ = nullptr;                // set by connect(), as the next
  const Identity* identity_ = nullptr;  // owners: see LinkTable
  wire::MemberRecord member_;
  support::Fallback why_not_local_;
  int local_attempts_ = 0;  // that ended before the peer had proven the key
  std::optional<Error> broken_;
  std::vector<wire::Message> waiting_;  // until the handshake is done, also those that were sent before
  std::map<std::uint64_t, OnReply> by_number_;
  std::map<wire::Digest, std::vector<OnReply>> by_digest_;  // several restores may request the same one
  std::map<std::uint64_t, Broken> watchers_;
  std::uint64_t next_watcher_ = 1;
  std::map<std::uint64_t, std::vector<support::Descriptor>> descriptors_;  // by request
  std::vector<FabricState> fabric_states_;                                 // by fabric
  std::map<std::string, Binding> bindings_;                                // by publication
  std::shared_ptr<Connection> connection_;  // owners: this link and its own callbacks; null until connect()

  // The best fabric is to be prepared once the source has said hello.
  bool ahead_ = false;
  // Closes sockets that no operation has asked for.
  std::optional<Timer> ahead_timer_;
};

}  // namespace shardwire
