// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "session/control/connection.hpp"
#include "session/control/fabric_channel.hpp"
#include "session/control/payload_sockets.hpp"
#include "session/fabrics.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Where the requests of one asker begin to be numbered: far from those of others on the same link, and from overflow.
std::uint64_t first_request();

/// The reading side's connection to one source: requests and their answers, and the fabric's view of the source. Kept for
/// the life of the session, so that later restores find endpoint and mapped regions ready.
/// Threads: loop thread only.
class Link {
 public:
  using Answer = std::function<void(wire::Message&)>;  ///< a reply, or wire::Failure
  using Clock = std::chrono::steady_clock;
  using Broken = std::function<void(const Error&)>;  ///< the connection ended; nothing further comes

  /// To a member whose address is not known yet: what is asked waits for connect().
  Link(const Fabrics& fabrics, int rank) : fabrics_(fabrics), rank_(rank), fabric_states_(fabrics.size()) {}
  ~Link();

  /// Ownership: borrows loop and identity. Errors: throws Error{out_of_resources}.
  void connect(Loop& loop, const wire::MemberRecord& member, const Identity& identity);
  /// Gives up: the member has no address to connect to.
  void fail(const Error& reason) { ended(reason); }
  [[nodiscard]] bool broken() const { return broken_.has_value(); }

  /// Sends when the connection is ready. Messages that carry a request number get their answer by it.
  void request(std::uint64_t number, const wire::Message& message, Answer answer);
  /// Manifests and values are answered by digest.
  void request(const wire::Digest& digest, const wire::Message& message, Answer answer);
  /// Descriptors that came for this request before its answer.
  std::vector<support::Descriptor> take_descriptors(std::uint64_t number);
  /// Takes back interest in an answer, e.g. of a packed request whose payload has come.
  void forget(std::uint64_t number) { by_number_.erase(number); }
  /// Sends what needs no answer.
  void post(const wire::Message& message) { send(message); }
  /// Cuts connection and endpoints off, and ends the link for `reason`.
  void abort(const Error& reason);
  /// Whether the peer's hello lists the capability. Requires: something was answered.
  [[nodiscard]] bool peer_can(std::string_view capability) const;
  /// The same.
  [[nodiscard]] const wire::Hello& peer() const { return connection_->peer(); }
  /// The source is a process of this host, by the kernel's word, and descriptors can be handed over.
  [[nodiscard]] bool is_local() const { return connection_ && connection_->is_local(); }
  /// Why it is not, for people.
  [[nodiscard]] const std::string& why_not_local() const { return why_not_local_; }
  void leave() {
    if (connection_) connection_->leave();
  }

  /// Watchers of this link's end, until they are removed.
  std::uint64_t watch(Broken broken);
  void unwatch(std::uint64_t watcher) { watchers_.erase(watcher); }
  [[nodiscard]] std::size_t watchers() const { return watchers_.size(); }

  // Fabrics, each by its index in Fabrics: prepare(), then a Bind with handle(), then channel() with the answer.

  /// Runs with a null pointer, or with what stands in the way; now or on a later turn of the loop.
  using Prepared = std::function<void(const Error* why_not)>;
  /// Opens the sockets that the fabric lives on, unless it is connected.
  void prepare(std::size_t fabric, Prepared prepared);
  /// The source says that these sockets have ended: others are opened, unless that was done meanwhile.
  void give_up(std::size_t fabric, std::uint64_t sockets);
  /// It does not carry what it has promised: this channel is given up, and unless there is another by now, none is prepared again.
  void rule_out(std::size_t fabric, FabricChannel& channel, const Error& why);
  /// Gives all channels up; who needs one makes it anew.
  void cut_channels();
  /// What Bind says of the fabric. Requires: it is prepared.
  [[nodiscard]] wire::FabricHandle handle(std::size_t fabric) const;
  /// To the source's fabric at `address`, made once, and anew when it has failed; null when the sockets that were prepared for it
  /// are gone. Requires: it is prepared. Ownership: this link, until there is another; restores that are bound over it; regions.
  /// Errors: as Fabric::connect.
  std::shared_ptr<FabricChannel> channel(std::size_t fabric, const Bytes& address);
  [[nodiscard]] bool connected(std::size_t fabric) const {
    const auto& channel = fabric_states_[fabric].channel;
    return channel && !channel->endpoint->failed();
  }
  /// The source's region, imported once. Requires: the fabric has a channel. Errors: as Endpoint::import_region.
  std::shared_ptr<transport::RemoteRegion> region(std::size_t fabric, const Bytes& key, ByteCount size_bytes,
                                                  std::vector<support::Descriptor> descriptors);

  /// This publication of the source is read through the regions with these keys. Others that it was read through before
  /// are given back, unless another publication of the source lies there.
  void bound(const std::string& publication, std::uint64_t generation, std::set<Bytes> keys);
  [[nodiscard]] bool is_bound(const std::string& publication, std::uint64_t generation) const;
  /// Publications that are bound and `live` says no of, with the bytes that are mapped for them.
  struct Idle {
    std::string publication;
    ByteCount bytes = 0;
  };
  [[nodiscard]] std::vector<Idle> idle(
      const std::function<bool(const std::string& publication, std::uint64_t generation)>& live) const;
  /// Gives back what only this publication is read through.
  void unbind(const std::string& publication);

 private:
  struct Binding {
    std::uint64_t generation = 0;
    std::set<Bytes> keys;
  };
  /// One fabric's way to the source.
  struct FabricState {
    std::uint64_t token = 0;  // of its sockets; 0: none were opened
    std::unique_ptr<OpeningSockets> opening;
    std::vector<Prepared> waiting;  // for these
    std::vector<support::Descriptor> sockets;
    Clock::time_point opened_at{};
    Bytes address;
    std::shared_ptr<FabricChannel> channel;  // owners: see channel()
    std::optional<Error> ruled_out;
    std::map<Bytes, std::shared_ptr<transport::RemoteRegion>> regions;  // owners: this cache and restores that read
  };
  void dial();
  void sockets_opened(std::size_t fabric, std::vector<support::Descriptor> sockets, const Error* why_not);
  void take_descriptors_in(Connection& connection, const wire::Descriptors& message);
  void drop_unbound(const std::set<Bytes>& keys);
  void send(const wire::Message& message);
  void answered(wire::Message& message);
  void ended(const Error& reason);

  const Fabrics& fabrics_;
  int rank_;
  Loop* loop_ = nullptr;                // once connect() was called, as the next
  const Identity* identity_ = nullptr;  // owners: see LinkTable
  wire::MemberRecord member_;
  std::string why_not_local_;
  std::optional<Error> broken_;
  std::vector<wire::Message> waiting_;  // until the handshake is done
  std::map<std::uint64_t, Answer> by_number_;
  std::map<wire::Digest, std::vector<Answer>> by_digest_;  // several restores may ask for the same one
  std::map<std::uint64_t, Broken> watchers_;
  std::uint64_t next_watcher_ = 1;
  std::map<std::uint64_t, std::vector<support::Descriptor>> descriptors_;  // by request
  std::vector<FabricState> fabric_states_;                                 // by fabric
  std::map<std::string, Binding> bindings_;                                // by publication
  std::shared_ptr<Connection> connection_;  // owners: this link and its own callbacks; null until connect()
};

}  // namespace shardwire
