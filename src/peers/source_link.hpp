// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "paths/fabric_channel.hpp"
#include "runtime/clock.hpp"
#include "shardwire/error.hpp"
#include "support/descriptors.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// The reading side's connection to one source process: requests with their answers, and the fabrics that reach it.
/// Shared by every operation that reads from that process. `Link` is the real one; tests supply their own.
/// Threads: loop thread only.
class SourceLink {
 public:
  using OnReply = std::function<void(wire::Message&)>;         ///< a reply, or wire::Failure
  using Broken = std::function<void(const Error&)>;            ///< the connection ended; no answer follows
  using Prepared = std::function<void(const Error* why_not)>;  ///< null: the fabric can be bound

  virtual ~SourceLink() = default;

  [[nodiscard]] virtual bool broken() const = 0;
  /// Sends when the connection may carry it. The answer is found by the request's number.
  virtual void request(std::uint64_t number, const wire::Message& message, OnReply answer) = 0;
  /// Manifests and values are answered by digest.
  virtual void request(const wire::Digest& digest, const wire::Message& message, OnReply answer) = 0;
  /// Descriptors that arrived for this request before its answer.
  virtual std::vector<support::Descriptor> take_descriptors(std::uint64_t number) = 0;
  /// Drops interest in an answer, e.g. of a packed request whose payload has arrived.
  virtual void forget(std::uint64_t number) = 0;
  /// Sends a message that has no answer.
  virtual void post(const wire::Message& message) = 0;
  /// Aborts the connection and its endpoints; the link ends with `reason`.
  virtual void abort(const Error& reason) = 0;

  /// Requires: the peer has answered.
  [[nodiscard]] virtual const wire::Hello& peer() const = 0;
  /// The kernel vouches that the source is a process of this host, so descriptors can be handed over.
  [[nodiscard]] virtual bool is_local() const = 0;
  /// Reason, for people, why it is not local.
  [[nodiscard]] virtual const support::Fallback& why_not_local() const = 0;

  /// When anything last came from the source. Asks it for a sign of life if that is `quiet` ago. Empty: it has not been
  /// called yet.
  virtual std::optional<Clock::Time> heard(std::chrono::nanoseconds quiet) = 0;

  /// Watchers of this link's end, until they are removed.
  virtual std::uint64_t watch(Broken broken) = 0;
  virtual void unwatch(std::uint64_t watcher) = 0;
  [[nodiscard]] virtual std::size_t watchers() const = 0;

  // Fabrics, each by its index in FabricTable::open: prepare(), then a Bind with handle(), then channel() with the
  // answer.

  /// Opens the sockets that the fabric needs, unless it is connected. `prepared` runs now or in a later loop iteration.
  virtual void prepare(std::size_t fabric, Prepared prepared) = 0;
  /// Opens the sockets of the fabric that will most likely carry payloads as soon as the source has said hello, so that
  /// prepare() finds them; they are closed unless it asks for them soon. A failure is reported only to a
  /// prepare() that was called meanwhile; a later one tries again.
  virtual void prepare_ahead() = 0;
  /// The source reports that these sockets have ended: opens others, unless that was done meanwhile.
  virtual void replace_sockets(std::size_t fabric, std::uint64_t sockets) = 0;
  /// The fabric does not carry what it promised: aborts this channel, and unless there is another by now, prepares
  /// none again.
  virtual void rule_out(std::size_t fabric, FabricChannel& channel, const Error& why) = 0;
  /// Aborts all channels; an operation that needs one creates a new one.
  virtual void abort_channels() = 0;
  /// The fabric's part of a Bind. Requires: it is prepared.
  [[nodiscard]] virtual wire::FabricHandle handle(std::size_t fabric) const = 0;
  /// Channel to the source's fabric at `address`, created once, and anew after a failure; null if the sockets prepared
  /// for it are gone. Requires: it is prepared. Ownership: the link, until there is another; operations that are bound
  /// over it; regions.
  /// Errors: as Fabric::connect.
  virtual std::shared_ptr<FabricChannel> channel(std::size_t fabric, const Bytes& address) = 0;
  /// The source's region, imported once. Requires: the fabric has a channel. Errors: as Endpoint::import_region.
  virtual std::shared_ptr<transport::RemoteRegion> region(std::size_t fabric, const Bytes& key, ByteCount size_bytes,
                                                          std::vector<support::Descriptor> descriptors) = 0;

  /// Records that this publication of the source is read through the regions with these keys. Releases regions used for
  /// it before, unless another publication of the source lies there.
  virtual void bound(const std::string& publication, std::uint64_t generation, std::set<Bytes> keys) = 0;
  [[nodiscard]] virtual bool is_bound(const std::string& publication, std::uint64_t generation) const = 0;
};

}  // namespace shardwire
