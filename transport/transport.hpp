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

#include "shardwire/costs.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"
#include "transport/memory.hpp"

namespace shardwire::memory {
struct DeviceAllocation;
}

// The internal contract of endpoint-style fabrics: probe -> open -> export/import address -> allocate or adopt a region
// -> export/import its key -> messages, reads -> progress -> close. See README.md beside this file for how to add one;
// collective.hpp is the contract of group-style transports.
//
// Threads: a Fabric and all that it makes belong to one thread, except Fabric::allocate, Fabric::adopt and Region's
// destructor, which may run on any thread. Completions and message handlers run inside progress(), never inside the call
// that posts.
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

/// Local memory that peers may be given access to. What is adopted stays its owner's, and has to stay mapped as long as the
/// region lives; until then its key opens all of it.
class Region {
 public:
  virtual ~Region() = default;
  [[nodiscard]] virtual Memory memory() const = 0;
  /// What a peer needs to import this region; opaque, at most max_key_bytes. Empty: peers cannot reach it.
  [[nodiscard]] virtual Bytes key() const = 0;
  /// Descriptors that have to be handed over with the key, at most max_key_descriptors. Borrowed from the region.
  [[nodiscard]] virtual std::vector<int> descriptors() const { return {}; }
  /// Gives the memory of whole parts inside the range back to the system, and returns how many bytes that was; they must not
  /// be touched any more. Any thread.
  virtual ByteCount discard(ByteCount /*offset_bytes*/, ByteCount /*bytes*/) { return 0; }
  /// Whether all of the range is still there. Any thread.
  [[nodiscard]] virtual bool holds(ByteCount /*offset_bytes*/, ByteCount /*bytes*/) const { return true; }
};
inline constexpr std::size_t max_key_bytes = 4096;
inline constexpr std::size_t max_key_descriptors = 64;
inline constexpr std::size_t max_address_bytes = 64 * 1024;

/// A key as it has come from a peer.
struct RegionKey {
  ByteView bytes;
  std::vector<support::Descriptor> descriptors{};
};

/// A peer's region as seen from here. Lives no longer than its endpoint.
class RemoteRegion {
 public:
  virtual ~RemoteRegion() = default;
  /// The peer's bytes, addressable in place, or empty when this peer's memory cannot be mapped. The length is what the
  /// importer was told, so the caller has to have checked offsets against it. The place is where they are as seen from here:
  /// memory of a device is mapped for one of this process's, whatever its owner calls it.
  [[nodiscard]] virtual ConstMemory mapped() const = 0;
  /// For people: why this one is not mapped, where Path::map says that such memory is. Empty: nothing more is known.
  [[nodiscard]] virtual std::string why_not_mapped() const { return {}; }
  /// Of memory of a device that is mapped: other devices can be given access to it, see memory::DeviceAllocation::peer_access.
  [[nodiscard]] virtual bool has_peer_access() const { return true; }
};

/// One message that has begun to arrive. Exactly one of receive() and discard() must be called inside the handler.
class Incoming {
 public:
  virtual ~Incoming() = default;
  [[nodiscard]] virtual ByteView header() const = 0;
  [[nodiscard]] virtual ByteCount payload_bytes() const = 0;
  /// The payload fills the ranges in their order. Requires: together they have payload_bytes(), and there are at most
  /// Path::max_message_ranges of them. The list is copied; the memory stays borrowed until `done` runs. `done` also runs when the
  /// sender dies, as long as this fabric has an endpoint to it: keep that until what comes from there has ended.
  virtual void receive(std::span<const Memory> into, Completion done) = 0;
  void receive(const Memory& into, Completion done) { receive(std::span(&into, 1), std::move(done)); }
  virtual void discard() = 0;
};

/// Messages of one sender arrive in order of their headers; payloads may complete in any order.
using MessageHandler = std::function<void(Incoming&)>;

/// What carries bytes between here and one peer, for local memory of one place, and what it can do.
struct Path {
  std::string carrier{};         ///< for people: protocol and device, e.g. "tcp/eth0"
  Reach reach = Reach::network;  ///< host: bytes do not pass a network interface
  bool map = false;              ///< regions that a peer has allocated, or handed over, can be addressed in place
  bool read = false;             ///< read() works, without the peer's processor unless reads_need_peer
  bool reads_need_peer = false;  ///< only while the peer's progress() runs: one that is stopped is not read
  bool message = false;          ///< send() works
  std::size_t max_message_ranges = 1;
  std::size_t max_read_ranges = 1;  ///< of one list
  ByteCount max_read_bytes = 0;     ///< of one list
  int max_reads = 0;                ///< lists that are worth having under way at once
  bool gpu_direct = false;          ///< device memory is moved without passing host memory
  std::string why_not{};            ///< for people: why not mapped, or not read, or staged through the host
};

/// One range of a list of reads.
struct ReadRange {
  ByteCount offset_bytes = 0;  ///< in the remote region
  Memory into;
};

class Endpoint {
 public:
  /// Bounded: gives up on what is pending, whose completions then never run.
  virtual ~Endpoint() = default;
  /// One message whose payload is the ranges in their order. Header and list are copied; the memory stays borrowed until
  /// `done` has run or the endpoint is gone. At most max_header_bytes of header, and Path::max_message_ranges ranges.
  /// Errors: throws Error{invalid_argument} beyond these limits, Error{unsupported} without Path::message.
  virtual void send(ByteView header, std::span<const ConstMemory> payload, Completion done) = 0;
  void send(ByteView header, const ConstMemory& payload, Completion done) {
    send(header, std::span(&payload, 1), std::move(done));
  }
  /// Errors: throws Error{transport_failed} for a key that this fabric cannot read, or when what it takes to read the peer cannot be
  ///         opened; Error{out_of_resources} or Error{unsupported} where that is why; Error{peer_lost}. The peer may
  ///         be reached over another fabric, and this one be tried again.
  virtual std::unique_ptr<RemoteRegion> import_region(RegionKey key, ByteCount size_bytes) = 0;
  /// One-sided reads, in any order, with one completion for all. The list is copied; the memory stays borrowed until `done`
  /// has run or the endpoint is gone. At most Path::max_read_ranges ranges.
  /// Errors: throws Error{invalid_argument} for a range outside of the region, a region of another fabric, or too many
  ///         ranges; Error{unsupported} without Path::read.
  virtual void read(const RemoteRegion& region, std::span<const ReadRange> ranges, Completion done) = 0;
  /// True once the fabric has noticed that the peer is gone; sends then complete with Fault{peer_lost}.
  [[nodiscard]] virtual bool failed() const = 0;
  [[nodiscard]] virtual Path path(const MemoryPlace& place) const = 0;
  /// For people: why memory of this allocation is not read into, where path() says that such of its device is. Empty: nothing is
  /// known against it.
  [[nodiscard]] virtual std::string why_not_into(const memory::DeviceAllocation& /*allocation*/) const { return {}; }
  /// Gives up on the peer at once: all that is posted here, and every receive from it, ends soon with a Fault, and then
  /// nothing writes into or reads from their buffers any more. The endpoint is of no use afterwards.
  virtual void abort() = 0;
};
inline constexpr std::size_t max_header_bytes = 64;

/// How a fabric comes to a peer's.
struct PeerAddress {
  ByteView address;        ///< what the peer's Fabric::address() has said
  bool same_host = false;  ///< by what the members say of themselves; the fabric finds out
  /// As many as Fabric::sockets() asks for, each connected to the peer's fabric, which is given the other ends. Both sides
  /// have proven on each of them who they are; nothing else travels there.
  std::vector<support::Descriptor> sockets{};
};

/// Sockets that an endpoint of a fabric lives on.
struct Sockets {
  enum class Kind : std::uint8_t { none, local, network };
  Kind kind = Kind::none;
  int count = 0;      ///< unless the session knows better
  int max_count = 0;  ///< not less than count
};

class Fabric {
 public:
  /// Bounded, also with peers that are dead. Regions must be gone before.
  virtual ~Fabric() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Name and version of the library that was loaded, e.g. "ucx 1.13.1".
  [[nodiscard]] virtual std::string version() const = 0;
  /// Two fabrics can talk when name and domain are equal.
  [[nodiscard]] virtual std::string domain() const = 0;
  /// What a peer needs to connect; at most max_address_bytes.
  [[nodiscard]] virtual Bytes address() const = 0;
  [[nodiscard]] virtual Sockets sockets() const { return {}; }
  /// Memory that peers can reach. Zero bytes are legal. Errors: throws Error{out_of_resources}, Error{unsupported} for memory
  /// of a place that this fabric cannot allocate.
  virtual std::unique_ptr<Region> allocate(ByteCount size_bytes, const MemoryPlace& place) = 0;
  std::unique_ptr<Region> allocate(ByteCount size_bytes) { return allocate(size_bytes, MemoryPlace{}); }
  /// Makes memory that somebody else owns reachable. Where the region's key is empty, peers can be sent its bytes only.
  /// Errors: throws Error{out_of_resources}, Error{unsupported} for memory of a place that this fabric knows nothing of.
  virtual std::unique_ptr<Region> adopt(const Memory& memory) = 0;
  /// Adopting memory of this place costs nothing worth mentioning here: sessions do it for all that is published, host memory
  /// with the gaps that it has, device memory by whole allocations, or chunks.
  [[nodiscard]] virtual bool adopts_unasked(const MemoryPlace& /*place*/) const { return false; }
  /// Errors: throws Error{transport_failed} for an address that this fabric cannot read, Error{unsupported} when no
  /// transport of the fabric reaches the peer.
  virtual std::unique_ptr<Endpoint> connect(PeerAddress peer) = 0;
  virtual void on_message(MessageHandler handler) = 0;
  /// Makes everything pending advance; returns false when there was nothing to do.
  virtual bool progress() = 0;
  /// Descriptor that becomes readable when progress() has work, once arm() has returned true. arm() returns false when
  /// there is work already. -1: no such descriptor, the caller has to poll.
  [[nodiscard]] virtual int event_descriptor() const = 0;
  virtual bool arm() = 0;
  /// What people should know and no call has said, each thing once; empty: nothing. Cheap.
  [[nodiscard]] virtual std::string take_warning() { return {}; }
};

/// Either viable, or the reason why not.
struct Viability {
  bool viable = false;
  std::string detail;  ///< loaded version, or the reason
};

/// How good a transport's paths are beside those of the others, by what is done over them: 1 is best, 0 means never. A path
/// is chosen for each peer and its memory; of those that are possible the lowest rank wins.
struct Preference {
  int map = 0;
  int read = 0;
  int message = 0;
};

/// Whose wish it is to open a transport: of somebody who has named it, or of "auto", for people who have said nothing.
enum class Asked : std::uint8_t { by_name, automatically };

/// A line of the table in registry.cpp.
struct Transport {
  std::string_view name;
  Reach reach;  ///< the farthest peers that it can carry bytes to
  Preference preference;
  Viability (*probe)(Asked asked);
  std::unique_ptr<Fabric> (*open)();
};

/// Every transport of this build, best first; the only list of transports.
std::span<const Transport> registered();
/// Errors: throws Error{unsupported} naming the transport and why it is off.
const Transport& choose(std::string_view name);
/// All that are viable and reach other processes.
inline constexpr std::string_view automatic = "auto";
/// Those that `names` stands for, in the order of the table: "auto", or names separated by commas.
/// Errors: as choose(); throws Error{unsupported} when "auto" finds none, with the reason of each.
std::vector<const Transport*> select(std::string_view names);

}  // namespace shardwire::transport
