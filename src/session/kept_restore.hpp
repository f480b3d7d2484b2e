// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "geometry/strides.hpp"
#include "move/choice.hpp"
#include "move/staging.hpp"
#include "session/link.hpp"
#include "session/live_marks.hpp"
#include "session/publication.hpp"
#include "session/restore_values.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// What planning was given and what came of it.
struct Planning {
  std::vector<wire::PublicationRecord> records;
  std::vector<std::shared_ptr<const Manifest>> manifests;  // of records, in that order
  std::optional<std::vector<ValueSource>> values;          // the same; empty while values are not needed
  JobLayout from;
  Plan plan;
  Findings findings;
  Schedule schedule;
  std::exception_ptr error;
};

/// A source of a restore, place `place` of the old layout.
struct SourcePeer {
  Rank place{};
  wire::PublicationRecord record;
  std::shared_ptr<const Manifest> manifest;  // owners: see DescribedCatalog
  std::shared_ptr<Link> link;                // owners: see Core::links_; null for this process itself
  std::uint64_t watcher = 0;
  std::uint64_t lease = 0;
  std::shared_ptr<detail::PublicationState> own;  // owners: see Publication; this process as a source
  std::vector<std::uint32_t> tensors;             // ids in its manifest that this restore reads, ascending
  std::uint64_t bound_generation = 0;             // of the publication that what follows belongs to; 0: none yet
  std::vector<std::shared_ptr<transport::RemoteRegion>> regions;  // null: of no use here
  std::vector<ByteCount> region_bytes;
  std::vector<wire::TensorHandle> handles;  // by position in `tensors`
  LiveMark mark;
  Reach reach = Reach::process;
  std::string protocol;
  std::string no_map_reason;
  std::string no_map_cost;
  ByteCount max_pack_bytes = 0;  // most payload of one packed request
};

/// What a restore that succeeded leaves for the next one of the same catalog: plan, binding, addresses, staging. Keeps no
/// publication of this process and no lease alive.
struct KeptRestore {
  std::string from;
  Catalog wanted;
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

}  // namespace shardwire
