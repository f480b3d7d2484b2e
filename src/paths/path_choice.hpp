// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "paths/fabric_channel.hpp"
#include "paths/fabrics.hpp"
#include "transport/transport.hpp"
#include "wire/messages.hpp"

// Chooses the fabrics that carry bytes from a peer. Pure functions of both sides' offers and of the results of
// connecting, in the order of the table of transports.
namespace shardwire {

/// Properties of an open fabric of this session.
struct FabricTraits {
  wire::FabricOffer offer;
  Reach reach = Reach::network;
  transport::Preference preference;
};

/// The transports of this build and their state in this session. Constant while the session lives.
struct FabricTable {
  struct Row {
    std::string name;
    Reach reach = Reach::network;
    transport::Preference preference;
    std::optional<std::size_t> open{};  ///< index into `open`
    support::Fallback why_not_open{};   ///< empty for an open one, or one between threads of one process
  };
  std::vector<FabricTraits> open;  ///< by index in Fabrics
  std::vector<Row> rows;           ///< in the order of the table of transports

  [[nodiscard]] const std::string& name(std::size_t fabric) const { return open[fabric].offer.name; }
  [[nodiscard]] const transport::Preference& preference(std::size_t fabric) const { return open[fabric].preference; }
};
FabricTable table_of(const Fabrics& fabrics);

/// Indexes into `own` of the fabrics that both sides have open and that reach the peer, best first. `same_host`: the
/// peer has proven to be a process of this host.
std::vector<std::size_t> common_fabrics(std::span<const FabricTraits> own, std::span<const wire::FabricOffer> theirs,
                                        bool same_host);

/// Place of a peer's region by its handle; none for an unknown kind of memory.
std::optional<transport::MemoryPlace> place_of(const wire::RegionHandle& handle);
/// A handle of this memory, without keys.
wire::RegionHandle handle_of(const transport::Memory& memory);

/// A fabric connected to a peer, with its abilities for host memory.
struct ConnectedFabric {
  std::size_t fabric = 0;  // see Fabrics
  transport::Path path;
  std::shared_ptr<FabricChannel> channel{};  // owners: see Link::channel()
  std::vector<int> reads_into{};             // devices of this process: see reads_directly()
};

/// Whether a fabric reads memory of this place, or into it, without host memory in between. `path`: the fabric's path
/// to it.
bool reads_directly(const transport::Path& path, const transport::MemoryPlace& place);

/// Quality of the best path to some memory: a rank of transport::Preference, or none.
inline constexpr int no_path = std::numeric_limits<int>::max();

/// The best path that a fabric could provide.
int potential_path(const transport::Preference& preference);

/// Access of a connected fabric to one region.
struct RegionAccess {
  bool mapped = false;
  bool readable = false;
  bool message = false;
};
/// `path`: to memory of the region's place. `region`: the imported region; null without a key.
RegionAccess access_to(const transport::Path& path, const transport::MemoryPlace& place,
                       const transport::RemoteRegion* region);
/// The access that remains for a destination in memory of one place here. `loads`: the copying unit there can load from
/// the mapping; `reads`: the fabric reads directly into that place.
RegionAccess access_into(RegionAccess access, bool loads, bool reads);
/// The better of `so_far` and the access through this fabric.
int best_path(int so_far, const transport::Preference& preference, const RegionAccess& access);

/// The fabric that reads, of those that can: `preferred`, unless another one reads more bytes directly into place.
/// `bytes`: by fabric, the number it reads directly.
std::size_t reads_most(std::size_t preferred, std::span<const ByteCount> bytes);

/// The best path of a connected fabric.
int best_path(const transport::Preference& preference, const transport::Path& path);

/// Reason why a better path does not carry a peer's bytes.
struct RejectedPath {
  std::string fabric;  ///< empty: the reason holds for all fabrics
  support::Fallback why;
  bool operator==(const RejectedPath&) const = default;
};
/// All in one: "<fabric>: <reason>; ..." for people, with the first that somebody can remove, else the first.
support::Fallback in_one(std::span<const RejectedPath> rejected);
/// "<fabric>: <reason>; ..."
std::string to_text(std::span<const RejectedPath> rejected);

/// The paths that carry the bytes of one peer.
struct PathDecision {
  std::optional<std::size_t> read_by{};  ///< index into the peer's connected fabrics: the best that reads
  std::optional<std::size_t> sent_by{};  ///< likewise: the best that sends messages
  std::vector<RejectedPath> rejected{};  ///< reasons why not everything is mapped
};

/// Whether connecting another fabric is worthwhile: it may be better for some memory, or carry messages that are
/// needed. `worst`: of all memory to be read, over the fabrics connected so far.
bool worth_connecting(const transport::Preference& next, int worst, bool messages_missing);

}  // namespace shardwire
