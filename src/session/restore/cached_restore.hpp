// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "geometry/strides.hpp"
#include "memory/device.hpp"
#include "move/choice.hpp"
#include "move/staging.hpp"
#include "session/control/link.hpp"
#include "session/path_choice.hpp"
#include "session/restore/values.hpp"
#include "session/source/generation_words.hpp"
#include "session/source/publication.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// What planning was given and what came of it.
struct Planning {
  std::vector<wire::PublicationRecord> records;
  std::vector<std::shared_ptr<const Manifest>> manifests;  // of records, in that order
  std::optional<std::vector<ValueSource>> values;          // the same; empty while values are not needed
  std::vector<std::shared_ptr<const std::vector<wire::NamedValue>>> value_lists;  // of values; owners: see Metadata
  JobLayout from;
  Plan plan;
  ResolvedValues resolved;
  Schedule schedule;
  std::exception_ptr error;
};

/// A region of a source: what it is over each of the connected fabrics, null where it has no key there.
struct SourceRegion {
  ByteCount bytes = 0;
  std::optional<transport::MemoryPlace> place{};               // none: of a kind that this version does not know
  std::vector<std::shared_ptr<transport::RemoteRegion>> over;  // in the order of SourcePeer::connected, as the next
  std::string mapped_by{};                                     // for people: what carries it where it is mapped
  std::vector<RegionAccess> access;  // before anybody has asked where it is wanted: see RestoreRun::access_into()
};

/// A source of a restore, rank `layout_rank` of the old layout.
struct SourcePeer {
  Rank layout_rank{};
  wire::PublicationRecord record;
  std::shared_ptr<const Manifest> manifest;  // owners: see DescribedCatalog
  std::shared_ptr<Link> link;                // owners: see Core::links_; null for this process itself
  std::uint64_t watcher = 0;
  std::uint64_t lease = 0;
  int unanswered = 0;                             // requests of this restore but those for bytes
  std::shared_ptr<detail::PublicationState> own;  // owners: see Publication; this process as a source
  std::vector<std::uint32_t> tensors;             // ids in its manifest that this restore reads, ascending
  std::vector<std::set<int>> targets;             // of them, the devices that they go to; empty: the host alone
  std::uint64_t bound_generation = 0;             // of the publication that what follows belongs to; 0: none yet
  std::vector<std::size_t> candidates;  // fabrics that may still be worth connecting, best first; while binding
  std::vector<ConnectedFabric> connected;
  std::map<std::size_t, std::string> left_out;  // fabrics that could not be connected, and why
  bool lacked_resources = false;                // one of them for that
  std::vector<SourceRegion> regions;
  int unregistered_path = no_path;          // the best for memory that lies in no region
  std::vector<wire::TensorHandle> handles;  // by position in `tensors`
  std::optional<std::size_t> read_by;       // index into `connected`, as the next: the best that reads, and that sends
  std::optional<std::size_t> sent_by;
  std::set<Bytes> keys;  // of the regions
  GenerationWord word;
  std::string no_map_reason;
  std::string no_map_cost;
  std::array<move::Prediction, way_count> expected{};  // of the transfers from here, by way; with gaps
  ByteCount max_pack_bytes = 0;                        // most payload of one packed request

  /// Every fabric that was connected still is.
  [[nodiscard]] bool still_connected() const {
    return std::ranges::none_of(connected, [](const ConnectedFabric& one) { return one.channel->endpoint->failed(); });
  }
  [[nodiscard]] std::size_t position_of(std::uint32_t tensor) const {
    return static_cast<std::size_t>(std::ranges::lower_bound(tensors, tensor) - tensors.begin());
  }
  /// Devices that the tensor at this position goes to, memory::on_host among them.
  [[nodiscard]] const std::set<int>& targets_of(std::size_t position) const {
    static const std::set<int> host{memory::on_host};
    return targets.empty() ? host : targets[position];
  }
  /// For people: what carries the regions that are mapped.
  [[nodiscard]] std::string mapped_by() const {
    std::set<std::string> names;
    for (const SourceRegion& region : regions) names.insert(region.mapped_by);
    names.erase("");
    std::string text;
    for (const std::string& one : names) text += (text.empty() ? "" : ", ") + one;
    return text;
  }
  /// Of one message from there.
  [[nodiscard]] std::size_t message_ranges() const { return sent_by ? connected[*sent_by].path.max_message_ranges : 1; }
  /// Nothing of the source's memory is known any more; the next restore binds anew.
  void unbind() {
    bound_generation = 0;
    connected.clear();
    left_out.clear();
    lacked_resources = false;
    regions.clear();
    unregistered_path = no_path;
    handles.clear();
    read_by.reset();
    sent_by.reset();
    keys.clear();
    word = {};
    no_map_reason.clear();
  }
};

/// What a restore that succeeded leaves for the next one of the same catalog: plan, binding, addresses, staging. Holds no
/// publication of this process and no lease alive.
struct CachedRestore {
  std::string from;
  Catalog wanted;
  TensorPlaces places;                       // of wanted
  std::shared_ptr<const Manifest> manifest;  // of wanted; owners: see DescribedCatalog
  bool needs_values = false;
  std::shared_ptr<Planning> planning;  // no other owner
  std::vector<SourcePeer> peers;
  std::shared_ptr<const std::vector<move::Transfer>> transfers;
  std::optional<Way> way;  // that was asked for
  move::Predictions predictions;
  BoxCache placed;
  std::shared_ptr<move::StagingPool> staging;
};

/// Whether both want the same of the same tensors, wherever their memory is.
bool alike(const Catalog& a, const Catalog& b);
/// Whether the memory is the same too. Requires: alike().
bool same_memory(const Catalog& a, const Catalog& b);
/// Whether a plan made from `a` holds for `b`: the same processes publish the same layouts.
bool same_sources(const std::vector<wire::PublicationRecord>& a, const std::vector<wire::PublicationRecord>& b);

/// The latest of them.
class RestoreCache {
 public:
  /// What an earlier restore of such a catalog has left, for one user at a time; null when there is nothing.
  std::unique_ptr<CachedRestore> take(const std::string& from, const Catalog& wanted);
  void keep(std::unique_ptr<CachedRestore> cached);
  /// A source is lost: what was read from it can be read so no more.
  void forget(const Link* link);
  /// Gives back the memory that this publication was read through.
  void unbind(const Link* link, const std::string& publication);
  void clear() { cached_.clear(); }

 private:
  std::vector<std::unique_ptr<CachedRestore>> cached_;  // latest last
};

}  // namespace shardwire
