// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/error.hpp"
#include "shardwire/types.hpp"

// The internal contract of endpoint-style fabrics: probe -> open -> export/import address -> register region ->
// export/import region key -> message, read -> progress -> close. See README.md beside this file for how to add one.
//
// Threads: a Fabric and all that it makes belong to one thread, except Fabric::allocate and Region's destructor, which
// may run on any thread. Completions and message handlers run inside progress(), never inside the call that posts.
namespace shardwire::transport {

using Clock = std::chrono::steady_clock;
using ByteView = std::span<const std::byte>;

/// How a posted operation ended. An empty optional is success.
struct Fault {
  ErrorCode code{};
  std::string message;
};
using Outcome = std::optional<Fault>;
using Completion = std::function<void(const Outcome&)>;

/// Local memory that peers may be given access to.
class Region {
 public:
  virtual ~Region() = default;
  [[nodiscard]] virtual std::span<std::byte> bytes() const = 0;
  /// What a peer needs to import this region; opaque, at most max_key_bytes.
  [[nodiscard]] virtual Bytes key() const = 0;
};
inline constexpr std::size_t max_key_bytes = 4096;
inline constexpr std::size_t max_address_bytes = 64 * 1024;

/// A peer's region as seen from here. Lives no longer than its endpoint.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  /// The peer's bytes, loadable in place, or an empty span when this peer's memory cannot be mapped. The length is what
  /// the importer was told, so the caller has to have checked offsets against it.
  [[nodiscard]] virtual std::span<const std::byte> mapped() const = 0;
};

/// One message that has begun to arrive. Exactly one of receive() and discard() must be called inside the handler.
class Incoming {
 public:
  virtual ~Incoming() = default;
  [[nodiscard]] virtual ByteView header() const = 0;
  [[nodiscard]] virtual ByteCount payload_bytes() const = 0;
  /// Requires: into.size() == payload_bytes(). `into` stays borrowed until `done` runs. `done` also runs when the sender
  /// dies, as long as this fabric has an endpoint to it: keep that until what comes from there has ended.
  virtual void receive(std::span<std::byte> into, Completion done) = 0;
  virtual void discard() = 0;
};

/// Messages of one sender arrive in order of their headers; payloads may complete in any order.
using MessageHandler = std::function<void(Incoming&)>;

class Endpoint {
 public:
  /// Bounded: gives up on what is pending, whose completions then never run.
  virtual ~Endpoint() = default;
  /// `header` is copied; `payload` stays borrowed until `done` runs. At most max_header_bytes of header.
  virtual void send(ByteView header, ByteView payload, Completion done) = 0;
  /// Errors: throws Error{transport_failed} for a key that this fabric cannot read.
  virtual std::unique_ptr<RemoteRegion> import_region(ByteView key, ByteCount size_bytes) = 0;
  /// One-sided read by hardware; only where Capabilities::one_sided_read. Same borrowing as send.
  virtual void read(const RemoteRegion& region, ByteCount offset_bytes, std::span<std::byte> into, Completion done) = 0;
  /// True once the fabric has noticed that the peer is gone; sends then complete with Fault{peer_lost}.
  [[nodiscard]] virtual bool failed() const = 0;
  /// For people: what carries the bytes, e.g. "shared memory", "tcp".
  [[nodiscard]] virtual std::string protocol() const = 0;
  /// The peer is on this host, and bytes do not pass a network interface.
  [[nodiscard]] virtual bool on_host() const = 0;
  /// Gives up on the peer at once: all that is posted here, and every receive from it, ends soon with a Fault, and then
  /// nothing writes into or reads from their buffers any more. The endpoint is of no use afterwards.
  virtual void abort() = 0;
};
inline constexpr std::size_t max_header_bytes = 64;

struct Capabilities {
  bool mapped = false;          ///< regions from allocate() can be mapped by peers on the same host
  bool one_sided_read = false;  ///< read() is done by hardware, without the peer's processor
  std::string no_map_reason{};  ///< for people: why not `mapped`
};

class Fabric {
 public:
  /// Bounded, also with peers that are dead. Regions must be gone before.
  virtual ~Fabric() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Name and version of the library that was loaded, e.g. "ucx 1.13.1".
  [[nodiscard]] virtual std::string version() const = 0;
  [[nodiscard]] virtual Capabilities capabilities() const = 0;
  /// Two fabrics can talk when name and domain are equal.
  [[nodiscard]] virtual std::string domain() const = 0;
  /// What a peer needs to connect; at most max_address_bytes.
  [[nodiscard]] virtual Bytes address() const = 0;
  /// Memory that peers can map or read. Zero bytes are legal. Errors: throws Error{out_of_resources}.
  virtual std::unique_ptr<Region> allocate(ByteCount size_bytes) = 0;
  /// Errors: throws Error{transport_failed} for an address that this fabric cannot read, Error{unsupported} when no
  /// transport of the fabric reaches the peer.
  virtual std::unique_ptr<Endpoint> connect(ByteView address, bool same_host) = 0;
  virtual void on_message(MessageHandler handler) = 0;
  /// Makes everything pending advance; returns false when there was nothing to do.
  virtual bool progress() = 0;
  /// Descriptor that becomes readable when progress() has work, once arm() has returned true. arm() returns false when
  /// there is work already. -1: no such descriptor, the caller has to poll.
  [[nodiscard]] virtual int event_descriptor() const = 0;
  virtual bool arm() = 0;
};

/// Either viable, or the reason why not.
struct Viability {
  bool viable = false;
  std::string detail;  ///< loaded version, or the reason
};

/// A line of the table in registry.cpp.
struct Transport {
  std::string_view name;
  Viability (*probe)();
  std::unique_ptr<Fabric> (*open)();
};

/// Every transport of this build, best first; the only list of transports.
std::span<const Transport> registered();
/// By name, or for "auto" the first that is viable and reaches other processes.
/// Errors: throws Error{unsupported} naming the transport and why it is off.
const Transport& choose(std::string_view name);

}  // namespace shardwire::transport
