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
#include "transport/transport.hpp"

namespace shardwire {

/// The reading side's connection to one source: requests and their answers, and the fabric's view of the source. Kept for
/// the life of the session, so that later restores find endpoint and mapped regions ready.
/// Threads: loop thread only.
class Link {
 public:
  using Answer = std::function<void(wire::Message&)>;  ///< a reply, or wire::Failure
  using Broken = std::function<void(const Error&)>;    ///< the connection ended; nothing further comes

  /// To a member whose address is not known yet: what is asked waits for connect().
  Link(transport::Fabric& fabric, int rank) : fabric_(fabric), rank_(rank) {}
  ~Link();

  void connect(Loop& loop, const wire::MemberRecord& member, const Identity& identity);
  /// Gives up: the member has no address to connect to.
  void fail(const Error& reason) { ended(reason); }
  [[nodiscard]] bool broken() const { return broken_.has_value(); }

  /// Sends when the connection is ready. Messages that carry a request number get their answer by it.
  void request(std::uint64_t number, const wire::Message& message, Answer answer);
  /// Manifests and values are answered by digest.
  void request(const wire::Digest& digest, const wire::Message& message, Answer answer);
  /// Takes back interest in an answer, e.g. of a packed request whose payload has come.
  void forget(std::uint64_t number) { by_number_.erase(number); }
  /// Sends what needs no answer.
  void post(const wire::Message& message) { send(message); }
  /// Cuts connection and endpoint off, and ends the link for `reason`.
  void abort(const Error& reason);
  /// Whether the peer's hello lists the capability. Requires: something was answered.
  [[nodiscard]] bool peer_can(std::string_view capability) const;
  void leave() {
    if (connection_) connection_->leave();
  }

  /// Watchers of this link's end, until they are removed.
  std::uint64_t watch(Broken broken);
  void unwatch(std::uint64_t watcher) { watchers_.erase(watcher); }

  /// Endpoint to the source's fabric at `address`, made once. Errors: as Fabric::connect.
  transport::Endpoint& endpoint(const Bytes& address);
  /// Requires: it was made.
  transport::Endpoint& endpoint() { return *endpoint_; }
  /// The source's region, imported once. Errors: as Endpoint::import_region.
  std::shared_ptr<transport::RemoteRegion> region(const wire::RegionHandle& handle);

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
  void drop_unbound(const std::set<Bytes>& keys);
  void send(const wire::Message& message);
  void answered(wire::Message& message);
  void ended(const Error& reason);

  transport::Fabric& fabric_;
  int rank_;
  bool same_host_ = false;
  std::optional<Error> broken_;
  std::vector<wire::Message> waiting_;  // until the handshake is done
  std::map<std::uint64_t, Answer> by_number_;
  std::map<wire::Digest, std::vector<Answer>> by_digest_;  // several restores may ask for the same one
  std::map<std::uint64_t, Broken> watchers_;
  std::uint64_t next_watcher_ = 1;
  Bytes address_;
  std::unique_ptr<transport::Endpoint> endpoint_;
  std::map<Bytes, std::shared_ptr<transport::RemoteRegion>> regions_;  // owners: this cache and restores that read
  std::map<std::string, Binding> bindings_;                            // by publication
  std::shared_ptr<Connection> connection_;  // owners: this link and its own callbacks; null until connect()
};

}  // namespace shardwire
