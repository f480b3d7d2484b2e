// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "session/control/fabric_channel.hpp"
#include "session/tensor_places.hpp"
#include "transport/transport.hpp"
#include "wire/messages.hpp"

// Which fabrics carry bytes from a peer. Pure functions of what both sides offer and of what was found when connecting: the
// order is the table of transports'.
namespace shardwire {

/// What the choice knows of a fabric of this session.
struct FabricTraits {
  wire::FabricOffer offer;
  Reach reach = Reach::network;
  transport::Preference preference;
};

/// Indexes into `own` of the fabrics that both sides have and that reach the peer, best first.
/// `same_host`: the peer has proven to be a process of this host.
std::vector<std::size_t> common_fabrics(std::span<const FabricTraits> own, std::span<const wire::FabricOffer> theirs,
                                        bool same_host);

/// Where a region of a peer lies, by its handle; none for a kind of memory that this version does not know.
std::optional<transport::MemoryPlace> place_of(const wire::RegionHandle& handle);
/// A handle of this memory, without keys.
wire::RegionHandle handle_of(const transport::Memory& memory);

/// A fabric that is connected to a peer, and what it can do with host memory.
struct ConnectedFabric {
  std::size_t fabric = 0;  // see Fabrics
  transport::Path path;
  std::shared_ptr<FabricChannel> channel{};  // owners: see Link::channel()
  std::vector<int> reads_into{};             // devices of this process: see reads_directly()
};

/// Whether a fabric reads memory of this place, or into it, and host memory has no part in that. `path`: what it says of it.
bool reads_directly(const transport::Path& path, const transport::MemoryPlace& place);

/// Something wanted that a fabric does not read into, though it does into other memory of its device.
struct UnfitTarget {
  std::size_t entry = 0;  ///< of the catalog
  std::string why;        ///< for people
};
/// The first on this device; empty: there is none. `places`: of what is wanted.
std::optional<UnfitTarget> unfit_target(const transport::Endpoint& endpoint, const TensorPlaces& places, int device);

/// How good the best path to some memory is: a rank of transport::Preference, or none.
inline constexpr int no_path = std::numeric_limits<int>::max();

/// The best that a fabric may be good for.
int potential_path(const transport::Preference& preference);

/// What a connected fabric can do for one region.
struct RegionAccess {
  bool mapped = false;
  bool readable = false;
  bool message = false;
};
/// `path`: what it can do with memory of the region's place. `region`: what it has imported; null where it has no key.
RegionAccess access_to(const transport::Path& path, const transport::MemoryPlace& place,
                       const transport::RemoteRegion* region);
/// What is left of it where the bytes are wanted in memory of one place here: `loads`: what makes copies there can load from
/// where the region is mapped; `reads`: the fabric reads straight into that place.
RegionAccess access_into(RegionAccess access, bool loads, bool reads);
/// The better of what the region had and what this fabric gives it.
int best_path(int so_far, const transport::Preference& preference, const RegionAccess& access);

/// Which fabric is to read, of those that can: `preferred`, unless another one reads more bytes straight into place.
/// `bytes`: by fabric, what it reads so.
std::size_t reads_most(std::size_t preferred, std::span<const ByteCount> bytes);

/// What a connected fabric gives at best.
int best_path(const transport::Preference& preference, const transport::Path& path);

/// Whether another fabric is worth connecting: it may be better for some memory, or carry the messages that are wanted.
/// `worst`: of all memory that is to be read, with what is connected so far.
bool worth_connecting(const transport::Preference& next, int worst, bool messages_missing);

}  // namespace shardwire
