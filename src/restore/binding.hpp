// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/device.hpp"
#include "move/transfer.hpp"
#include "paths/path_choice.hpp"
#include "paths/path_reasons.hpp"
#include "peers/source_link.hpp"
#include "serve/generation_words.hpp"
#include "serve/publication.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/plan.hpp"

namespace shardwire::restore {

/// A region of a source, with its import over each connected fabric; null if it has no key there.
struct SourceRegion {
  ByteCount bytes = 0;
  std::optional<transport::MemoryPlace> place{};               ///< none: a kind of memory unknown to this version
  std::vector<std::shared_ptr<transport::RemoteRegion>> over;  ///< in the order of Binding::connected, as the next
  std::vector<RegionAccess> access;                            ///< into host memory; see DeviceReach::access_into()
  std::string mapped_by{};                                     ///< for people: the fabric that maps it
};

/// How one rank reads from one source rank: the tensors it reads, and the paths to their memory. A value: Source
/// determines it, a cached restore keeps it for the next one.
struct Binding {
  Rank holder{};       ///< of the plan's `from` side: the source
  Rank layout_rank{};  ///< of the source, in its layout; several holders may have the same
  wire::PublicationRecord record;
  std::shared_ptr<const Manifest> manifest;  ///< owners: see DescribedCatalog
  std::vector<std::uint32_t> tensors;        ///< ids in the manifest that are read, ascending
  /// By position in `tensors`: bytes for each device, memory::on_host included. Empty: all of them for the host.
  std::vector<std::map<int, ByteCount>> targets;

  std::shared_ptr<detail::PublicationState>
      own;                           ///< this process as a source; null for all others. Owners: see Publication
  std::shared_ptr<SourceLink> link;  ///< to all others; owners: see LinkTable

  std::uint64_t generation = 0;  ///< of the bound publication; 0: none yet
  std::vector<ConnectedFabric> connected;
  std::map<std::size_t, std::string> failed_fabrics;  ///< that this restore uses no longer, with reasons
  std::map<std::size_t, std::string> excluded;        ///< fabrics that were not bound, with reasons; failed ones too
  bool lacked_resources = false;                      ///< at least one of them for lack of resources
  bool peer_ended = false;                            ///< at least one of them because the peer ended its connection
  std::vector<SourceRegion> regions;
  std::vector<wire::TensorHandle> handles;  ///< by position in `tensors`
  int unregistered_path = no_path;          ///< the best for memory outside all regions
  std::set<Bytes> keys;                     ///< of the regions
  GenerationWord word;
  ByteCount max_pack_bytes = 0;  ///< maximum payload of one packed request
  bool digests = false;          ///< its blocks have digests; see wire::BlockRequest
  PathDecision path;

  [[nodiscard]] bool is_own() const { return own != nullptr; }
  /// Every connected fabric is still connected.
  [[nodiscard]] bool still_connected() const;
  [[nodiscard]] std::size_t position_of(std::uint32_t tensor) const;
  /// Bytes of the tensor at this position by target device.
  [[nodiscard]] const std::map<int, ByteCount>& targets_of(std::size_t position) const;
  /// The region of the tensor at this position; null if there is none.
  [[nodiscard]] const SourceRegion* region_of(std::size_t position) const;
  /// Source device of the tensor at this position, or memory::on_host; none for a kind of memory unknown to this
  /// version.
  [[nodiscard]] std::optional<int> device_at_source(std::size_t position) const;
  /// For people: the fabrics that map regions.
  [[nodiscard]] std::string mapped_by() const;
  /// Per message from the source.
  [[nodiscard]] std::size_t max_message_ranges() const;
  /// The connected fabric that moves bytes by this method; null for methods without a fabric.
  [[nodiscard]] const ConnectedFabric* carrier_of(Method method) const;
  /// The channel of its messages, if that is another fabric's endpoint; null: none.
  [[nodiscard]] const FabricChannel* message_channel() const;
  /// Forgets the source's memory; the next restore binds anew.
  void unbind();
};

/// A source's answer over one fabric, with the imported regions.
struct BoundFabric {
  std::size_t fabric = 0;
  wire::Bound reply;
  std::shared_ptr<FabricChannel> channel{};  ///< owners: see SourceLink::channel()
  transport::Path path{};
  std::vector<std::shared_ptr<transport::RemoteRegion>> regions{};  ///< of the reply
  std::set<Bytes> keys{};
  GenerationWord word{};
};

/// State of the fabrics with this source. Requires: it has answered. Ownership: borrows from the binding.
[[nodiscard]] PeerFabrics fabrics_of(const Binding& binding);

/// Checks a source's answer to Bind against the request, and against its answers over other fabrics: only the keys may
/// differ.
/// Errors: throws Error{transport_failed} naming the source's rank.
void check_bound(const Binding& binding, const wire::Bound& reply);

/// The source answers the request with one message that it packs itself, which it does only while the publication is
/// live.
[[nodiscard]] bool is_packed_by_source(const move::Transfer& transfer, const Binding& binding);
/// Every transfer with this source comes in messages.
[[nodiscard]] bool all_in_messages(std::span<const move::Transfer> transfers, std::size_t source);

using WordRead = std::function<void(const transport::Outcome& fault, std::uint64_t word)>;
/// Reads a generation word over its channel. Requires: word.region.
void read_word(const GenerationWord& word, WordRead done);

}  // namespace shardwire::restore
