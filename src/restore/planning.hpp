// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "move/transfer.hpp"
#include "plan/other_holders.hpp"
#include "plan/replan.hpp"
#include "restore/values.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/report.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

struct Wanted;

/// Inputs and result of one plan.
struct Planning {
  std::vector<wire::PublicationRecord> records;            // of one step, at least one
  std::vector<IncompleteStep> incomplete_steps;            // that were passed over, see RestoreReport
  std::vector<std::shared_ptr<const Manifest>> manifests;  // of records, in the same order
  std::vector<Rank> holders;                               // of `from`, likewise
  std::vector<ValueSource> values;                         // of those in scope
  ValueScope scope = ValueScope::none;
  std::vector<std::shared_ptr<const std::vector<wire::NamedValue>>> value_lists;  // of values; owners: see Metadata
  JobLayout from;
  Plan plan;
  ResolvedValues resolved;
  Schedule schedule;
  OtherHolders others;  // none without Replicas::compare
  std::exception_ptr error;
};

inline bool is_in(const std::vector<Rank>& ranks, Rank rank) {
  return std::ranges::find(ranks, rank) != ranks.end();
}

/// The publication of a holder. Requires: the plan names it.
inline const wire::PublicationRecord& record_of(const Planning& planning, Rank holder) {
  return planning
      .records[static_cast<std::size_t>(std::ranges::find(planning.holders, holder) - planning.holders.begin())];
}

/// Plans what `member` wants from the side `planning.from`. Errors: as Planner.
Planner planner_of(const Planning& planning, const Wanted& wanted, int member, Replicas replicas);
/// Completes a planning of which records, manifests, values and their scope are known. A plan with gaps gets no schedule.
/// Pure. Errors: as Planner.
void plan_into(Planning& planning, const Wanted& wanted, int member, Replicas replicas);

/// Adds publications of ranks that the plan names as further holders: those of the plan's step whose manifest is the
/// rank's. `published`: live publications of the name.
void add_copies(Planning& planning, std::span<const wire::PublicationRecord> published);

/// A box of a piece of the plan that is missing on `target`. `wanted`: manifest of the target.
inline Gap gap_of(const Planning& planning, const Manifest& wanted, std::uint32_t piece, const Box& box, Rank target) {
  const TensorKey& key = wanted.tensors[to_index(planning.plan.pieces[piece].tensor)].spec.key;
  return {key.fqn, key.state, box, target};
}

inline ByteCount bytes_of(const Planning& planning, const Manifest& wanted, const PieceBox& one) {
  const TensorId tensor = planning.plan.pieces[one.piece].tensor;
  return move::bytes_of_box(one.box, item_size(wanted.tensors[to_index(tensor)].spec.dtype));
}

}  // namespace shardwire::restore
