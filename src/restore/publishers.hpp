// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/directory.hpp"
#include "restore/metadata.hpp"
#include "shardwire/plan.hpp"

namespace shardwire::restore {

/// Inputs of the decision whether to wait for an unpublished layout rank.
struct PublishersInput {
  int member = 0;                      ///< this process
  bool own_on_its_way = false;         ///< it publishes the name, but the roster does not list it yet
  std::optional<std::int64_t> step{};  ///< requested step
  int ranks = 0;                       ///< of the source layout; 0: unknown
};

/// Layout ranks below `input.ranks` without a publication at the step, ascending. `records`: in any order.
std::vector<int> open_ranks(std::span<const wire::PublicationRecord> records, const PublishersInput& input);

/// Members that may still publish an open layout rank, ascending; empty: no further publication can arrive.
///
/// A member that publishes the name at the step, or at a later one, publishes no more for it: sources go forward.
/// Members that left or are lost publish nothing until another process takes their number. All others may, joined or
/// not, except:
/// * If member minus layout rank is the same for all publications of the name, an open rank is awaited only from the
///   member at that distance. Otherwise a restore would wait until the deadline for readers that never publish.
/// * If the distances differ, a process that waits alone does not wait for itself if as many members have departed as
///   ranks are open.
/// Pure. `records`: live publications of the name, at any step. Cost: O(members + ranks).
std::vector<int> possible_publishers(const Directory& directory, std::span<const wire::PublicationRecord> records,
                                     const PublishersInput& input);

/// Errors: throws Error{layout_mismatch} if publications of `from` declare layouts over different numbers of ranks, or
/// one layout rank twice. `records`: ascending by layout rank, with known manifests.
void check_layouts(std::span<const wire::PublicationRecord> records, const Metadata& known, const std::string& from);

/// One section per distinct manifest, its ranks ascending. `manifests`: of the records.
JobLayout side_of(std::span<const wire::PublicationRecord> records,
                  std::span<const std::shared_ptr<const Manifest>> manifests);

}  // namespace shardwire::restore
