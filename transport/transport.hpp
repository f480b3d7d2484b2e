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

#include "memory/shared_memory.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"
#include "support/encryption.hpp"
#include "support/fallback.hpp"
#include "transport/memory.hpp"

namespace shardwire::memory {
struct DeviceAllocation;
}

// The internal contract of endpoint-style fabrics: probe -> open -> export/import address -> allocate or adopt a region
// -> export/import its key -> messages, reads -> progress -> close. README.md in this folder explains how to add one;
// collective.hpp is the contract of group-style transports.
//
// Threads: a Fabric and all objects it creates belong to one thread, except Fabric::allocate, Fabric::adopt and
//          Region's destructor, which may run on any thread. Completions and message handlers run inside progress(),
//          never inside the call that posts.
namespace shardwire::transport {

using WallClock = std::chrono::steady_clock;
using ByteView = std::span<const std::byte>;

/// How a posted operation ended. An empty optional is success.
struct Fault {
  ErrorCode code{};
  std::string message;
};
using Outcome = std::optional<Fault>;
using Completion = std::function<void(const Outcome&)>;

/// Local memory that peers can be given access to. Adopted memory stays the caller's and must stay mapped for the
/// lifetime of the region; during that time its key gives access to all of it.
class Region {
 public:
  virtual ~Region() = default;
  [[nodiscard]] virtual Memory memory() const = 0;
  /// The data that a peer needs to import this region; opaque, at most max_key_bytes. Empty: peers cannot reach it.
  [[nodiscard]] virtual Bytes key() const = 0;
  /// Descriptors to hand over with the key, at most max_key_descriptors. Borrowed from the region.
  [[nodiscard]] virtual std::vector<int> descriptors() const { return {}; }
  /// Returns the memory of whole parts inside the range to the system. Result: the number of bytes returned, which must
  /// not be accessed any more. Any thread.
  virtual ByteCount discard(ByteCount /*offset_bytes*/, ByteCount /*bytes*/) { return 0; }
  /// Whether no part of the range has been discarded. Any thread.
  [[nodiscard]] virtual bool holds(ByteCount /*offset_bytes*/, ByteCount /*bytes*/) const { return true; }
};
inline constexpr std::size_t max_key_bytes = 4096;
inline constexpr std::size_t max_key_descriptors = 64;
inline constexpr std::size_t max_address_bytes = 64 * 1024;

/// A key as received from a peer.
struct RegionKey {
  ByteView bytes;
  std::vector<support::Descriptor> descriptors{};
};

/// A peer's region as seen from here. It must not outlive its endpoint.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  /// The peer's bytes, addressable in place, or empty if this peer's memory cannot be mapped. The length is the one
  /// given to import_region(), so the caller must have checked offsets against it. The place is local: memory of a
  /// device is mapped for one of this process's devices, whatever ordinal its owner uses.
  [[nodiscard]] virtual ConstMemory mapped() const = 0;
  /// For people: why this region is not mapped although Path::map promises it. Empty: no reason is known.
  [[nodiscard]] virtual std::string why_not_mapped() const { return {}; }
  /// For mapped device memory: other devices can be given access to it, see memory::DeviceAllocation::peer_access.
  [[nodiscard]] virtual bool has_peer_access() const { return true; }
};

/// A message that has begun to arrive. The handler calls exactly one of receive() and discard().
class Incoming {
 public:
  virtual ~Incoming() = default;
  [[nodiscard]] virtual ByteView header() const = 0;
  [[nodiscard]] virtual ByteCount payload_bytes() const = 0;
  /// The payload fills the ranges in their order. Requires: the ranges hold payload_bytes() in total, and there are at
  /// most Path::max_message_ranges of them. The list is copied; the memory stays borrowed until `done` runs. `done`
  /// also runs if the sender dies, provided that this fabric has an endpoint to it: keep the endpoint until all
  /// receives from it ended.
  virtual void receive(std::span<const Memory> into, Completion done) = 0;
  void receive(const Memory& into, Completion done) { receive(std::span(&into, 1), std::move(done)); }
  virtual void discard() = 0;
  /// True if a receive that succeeds has the bytes that the sender's memory had while send() borrowed it: the fabric copies
  /// them there. False if this side or a NIC fetches them: it may do so later, and succeed all the same.
  [[nodiscard]] virtual bool is_copied() const { return false; }
};

/// Messages of one sender arrive in the order of their headers; payloads may complete in any order.
using MessageHandler = std::function<void(Incoming&)>;

/// The connection to one peer for local memory of one place, and its capabilities.
struct Path {
  std::string carrier{};         ///< for people: protocol and device, e.g. "tcp/eth0"
  std::string_view cost_name{};  ///< name in CostModel, a constant; empty: that of the transport
  Reach reach = Reach::network;  ///< host: bytes do not pass a network interface
  bool map = false;              ///< regions that a peer allocated or handed over can be addressed in place
  bool read = false;             ///< read() works, without the peer's processor unless reads_need_peer
  bool reads_need_peer = false;  ///< the peer must run progress(); a stopped peer cannot be read
  bool message = false;          ///< send() works
  std::size_t max_message_ranges = 1;
  std::size_t max_read_ranges = 1;  ///< per list
  ByteCount max_read_bytes = 0;     ///< per list
  int max_reads = 0;                ///< useful number of lists under way at once
  bool gpu_direct = false;          ///< device memory is moved without passing host memory
  support::Fallback why_not{};      ///< why memory is not mapped, not read, or staged through the host
};

/// One range of a list of reads.
struct ReadRange {
  ByteCount offset_bytes = 0;  ///< in the remote region
  Memory into;
};

class Endpoint {
 public:
  /// Bounded: abandons pending operations, whose completions then never run.
  virtual ~Endpoint() = default;
  /// Sends one message whose payload is the ranges in their order. Header and list are copied; the memory stays
  /// borrowed until `done` has run or the endpoint is gone. At most max_header_bytes of header, and
  /// Path::max_message_ranges ranges.
  /// Errors: throws Error{invalid_argument} beyond these limits, Error{unsupported} without Path::message.
  virtual void send(ByteView header, std::span<const ConstMemory> payload, Completion done) = 0;
  void send(ByteView header, const ConstMemory& payload, Completion done) {
    send(header, std::span(&payload, 1), std::move(done));
  }
  /// Errors: throws Error{transport_failed} for a key that this fabric cannot parse, or if the resources to read the
  ///         peer cannot be opened; Error{out_of_resources} or Error{unsupported} if that is the cause;
  ///         Error{peer_lost}. The peer may still be reachable over another fabric, and the call may be retried.
  virtual std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) = 0;
  /// One-sided reads, in any order, with one completion for all. The list is copied; the memory stays borrowed until
  /// `done` has run or the endpoint is gone. At most Path::max_read_ranges ranges.
  /// Errors: throws Error{invalid_argument} for a range outside the region, a region of another fabric, or too many
  ///         ranges; Error{unsupported} without Path::read.
  virtual void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) = 0;
  /// True once the fabric has detected that the peer is gone; sends then complete with Fault{peer_lost}.
  [[nodiscard]] virtual bool failed() const = 0;
  [[nodiscard]] virtual Path path(const MemoryPlace& place) const = 0;
  /// For people: why this allocation is no read target although path() promises reads into its device. Empty: no reason
  /// is known.
  [[nodiscard]] virtual std::string why_not_into(const memory::DeviceAllocation& /*allocation*/) const { return {}; }
  /// Aborts all operations with the peer at once: everything posted here, and every receive from it, soon ends with a
  /// Fault, and then their buffers are no longer accessed. The endpoint is unusable afterwards.
  virtual void abort() = 0;
};
inline constexpr std::size_t max_header_bytes = 64;

/// One of the sockets that an endpoint is given.
struct OpenSocket {
  OpenSocket() = default;
  OpenSocket(support::Descriptor connected) : descriptor(std::move(connected)) {}
  OpenSocket(support::Descriptor connected, std::unique_ptr<support::Encryption> used)
      : descriptor(std::move(connected)), encryption(std::move(used)) {}
  support::Descriptor descriptor{};
  std::unique_ptr<support::Encryption> encryption{};  ///< of all that passes it, both ways; null: none
};

/// How a fabric connects to a peer's fabric.
struct PeerAddress {
  ByteView address;        ///< the result of the peer's Fabric::address()
  bool same_host = false;  ///< as the members claim; the fabric verifies it
  /// As many as Fabric::sockets() requests, each connected to the peer's fabric, which receives the other ends. Both
  /// sides have authenticated on each socket; it carries nothing else.
  std::vector<OpenSocket> sockets{};
};

/// The number of sockets that an endpoint of a fabric needs.
struct SocketNeeds {
  enum class Kind : std::uint8_t { none, local, network };
  Kind kind = Kind::none;
  int count = 0;         ///< default; the session may choose another number
  int max_count = 0;     ///< not less than count
  bool encrypt = false;  ///< the fabric can encrypt what passes them
};

class Fabric {
 public:
  /// Bounded, even with dead peers. Regions must be destroyed first.
  virtual ~Fabric() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Name and version of the loaded library, such as "ucx 1.13.1".
  [[nodiscard]] virtual std::string version() const = 0;
  /// Two fabrics can connect if name and domain are equal.
  [[nodiscard]] virtual std::string domain() const = 0;
  /// The data that a peer needs to connect; at most max_address_bytes.
  [[nodiscard]] virtual Bytes address() const = 0;
  [[nodiscard]] virtual SocketNeeds sockets() const { return {}; }
  /// Allocates memory that peers can reach. Zero bytes are legal.
  /// Errors: throws Error{out_of_resources}; Error{unsupported} for a place that this fabric cannot allocate in.
  virtual std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) = 0;
  std::unique_ptr<Region> allocate(ByteCount size_bytes) { return allocate(size_bytes, MemoryPlace{}); }
  /// Makes memory of another owner reachable. If the region's key is empty, its bytes can only be sent.
  /// Errors: throws Error{out_of_resources}; Error{unsupported} for a place that this fabric does not support.
  virtual std::unique_ptr<Region> adopt(const Memory& memory) = 0;
  /// As adopt(), for host memory that other processes may map by its descriptors. Requires: it is sealed before its key is
  /// used.
  virtual std::unique_ptr<Region> adopt_shared(std::shared_ptr<memory::SharedMemory> memory) {
    return adopt({memory->address(), memory->bytes(), {}});  // its owner keeps it
  }
  /// True if adopting memory of this place is practically free: sessions then adopt everything that is published, host
  /// memory including its gaps, device memory by whole allocations or chunks.
  [[nodiscard]] virtual bool adopts_unasked(const MemoryPlace& /*place*/) const { return false; }
  /// Errors: throws Error{transport_failed} for an address that this fabric cannot parse, Error{unsupported} if no
  ///         transport of the fabric reaches the peer.
  virtual std::unique_ptr<Endpoint> connect(PeerAddress peer) = 0;
  virtual void on_message(MessageHandler handler) = 0;
  /// Advances everything pending; returns false if there was nothing to do.
  virtual bool progress() = 0;
  /// Descriptor that becomes readable when progress() has work, once arm() has returned true. arm() returns false if
  /// work is already pending. -1: no descriptor, the caller must poll.
  [[nodiscard]] virtual int event_descriptor() const = 0;
  virtual bool arm() = 0;
  /// A warning that no call has reported, each only once. Empty: none. Cheap.
  [[nodiscard]] virtual std::string take_warning() { return {}; }
};

/// Either viable, or the reason why not.
struct Viability {
  bool viable = false;
  std::string detail;       ///< loaded version, or the reason
  FallbackReason reason{};  ///< the same as an enumerator
};

/// Rank of a transport's paths among those of all transports, by use: 1 is best, 0 means never. For each peer and its
/// memory the possible path with the lowest rank is chosen.
struct Preference {
  int map = 0;
  int read = 0;
  int message = 0;
};

/// Built-in cost of a method whose bytes a transport carries, for host memory. Orders of magnitude that hold on most
/// servers: only the crossovers between methods matter.
struct BuiltInCost {
  Method method;
  MethodCost cost;
};

/// Whether the user named the transport, or it was selected by "auto".
enum class Asked : std::uint8_t { by_name, automatically };

/// One line of the table in registry.cpp.
struct Transport {
  std::string_view name;
  Reach reach;  ///< the farthest peers that it reaches
  Preference preference;
  std::span<const BuiltInCost> costs;  ///< a method without a line costs as much as over an unknown network
  Viability (*probe)(Asked asked);
  std::unique_ptr<Fabric> (*open)();
};

/// All transports of this build, best first; the only list of transports.
std::span<const Transport> registered();
/// Errors: throws Error{unsupported} that names the transport and why it is off.
const Transport& choose(std::string_view name);
/// Selects all transports that are viable and reach other processes.
inline constexpr std::string_view automatic = "auto";
/// The transports that `names` selects, in the order of the table: "auto", or names separated by commas.
/// Errors: as choose(); throws Error{unsupported} if "auto" finds none, with the reason for each.
std::vector<const Transport*> select(std::string_view names);

}  // namespace shardwire::transport
