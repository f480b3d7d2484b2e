// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "shardwire/plan.hpp"

namespace shardwire {

/// A region of a piece.
struct PieceBox {
  std::uint32_t piece = 0;  ///< index into Plan::pieces
  Box box;                  ///< global coordinates, within the piece; not empty
};

/// The same elements in fewer boxes: boxes of a piece that make up a larger one become that one. Requires: disjoint.
/// Cost: O(n log n) per dimension.
std::vector<PieceBox> joined(std::vector<PieceBox> boxes);

/// A plan of some regions of another, with a source for each.
struct Replan {
  Plan plan;          ///< its pieces: one per region, in their order; its holder sets still name lost holders
  Schedule schedule;  ///< one item per piece
};

/// Holders whose memory is not what they published, by wanted tensor.
using CorruptHolders = std::map<TensorId, std::vector<Rank>>;

/// Holders that do not deliver.
struct Unavailable {
  std::vector<Rank> lost{};    ///< hold nothing any more
  std::vector<Rank> silent{};  ///< hold what they held; chosen only where nobody else is left
  std::vector<Rank> slow{};    ///< answer, and deliver little; chosen only where nobody else is left who answers
  CorruptHolders corrupt{};    ///< not chosen for these tensors
};

/// Plans the regions again that sources have not delivered: each comes from one of its other holders. Readers that
/// hold the same plan spread over the holders, as the target's rank and the bytes chosen so far decide; with
/// Replicas::first and Replicas::compare every reader takes the lowest. Pure.
/// `schedule`: of `plan`, which was made from the side `from`. `missing`: disjoint.
/// Errors: throws Error{layout_mismatch} listing the regions without a holder.
/// Cost: O(regions times holders, plus items of the schedule, plus tensors of `from`).
Replan replan(const Plan& plan, const Schedule& schedule, const JobLayout& from, std::span<const PieceBox> missing,
              const Unavailable& unavailable, Replicas replicas);

/// Adds a further holder of what `rank` holds to a side and to a plan that was made from it, and returns its number. The
/// plan's holder sets are then those of a plan from the new side. Pure.
Rank add_copy(JobLayout& from, Plan& plan, Rank rank);

/// Regions of one plan as regions of another.
struct CarriedOver {
  std::vector<PieceBox> boxes;  ///< within pieces of the other plan
  std::vector<Gap> gaps;        ///< what the other plan has no piece for
};

/// The elements of `missing`, regions of `plan`, as regions of `other`, a plan for the same target over other holders. Pure.
/// `missing`: disjoint. Cost: O(n log n) in regions and pieces, and the number of pairs that overlap in their first dimension.
CarriedOver carry_over(const Plan& plan, std::span<const PieceBox> missing, const Plan& other);

/// The boxes of `missing` whose holders are all lost or corrupt, as gaps of the plan's target.
std::vector<Gap> without_holder(const Plan& plan, std::span<const PieceBox> missing, std::span<const Rank> lost,
                                const CorruptHolders& corrupt = {});

}  // namespace shardwire
