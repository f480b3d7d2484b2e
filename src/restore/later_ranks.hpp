// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "restore/name_view.hpp"
#include "restore/planning.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// Of `published`, publications of the plan's state by layout ranks that were not published when it was made; by rank.
std::vector<wire::PublicationRecord> later_ranks(const Planning& planning,
                                                 std::span<const wire::PublicationRecord> published);
/// Members are left that may still publish such ranks.
bool awaits_later_ranks(const Planning& planning, const NameView& name);

/// A plan of what is missing over later ranks, too.
struct LaterPlan {
  std::shared_ptr<Planning> planning;  ///< null: some of it has no holder that is left. Numbers holders as before
  std::vector<PieceBox> missing;       ///< of this plan
};

/// `planning`: copied. `later`: at least one, ascending by layout rank, with their manifests. Pure.
/// Errors: throws Error{layout_mismatch} if a later rank declares other tensors or another number of ranks.
LaterPlan plan_with(Planning planning, std::span<const PieceBox> missing, const Unavailable& unavailable,
                    std::span<const wire::PublicationRecord> later,
                    std::span<const std::shared_ptr<const Manifest>> manifests, const Wanted& wanted, int member,
                    const RestoreOptions& options);

}  // namespace shardwire::restore
