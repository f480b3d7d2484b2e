// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "plan/other_holders.hpp"
#include "restore/values.hpp"
#include "shardwire/plan.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// Inputs and result of one plan.
struct Planning {
  std::vector<wire::PublicationRecord> records;
  std::vector<std::shared_ptr<const Manifest>> manifests;  // of records, in the same order
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

/// A box of a piece of the plan that is missing on `target`. `wanted`: manifest of the target.
inline Gap gap_of(const Planning& planning, const Manifest& wanted, std::uint32_t piece, const Box& box, Rank target) {
  const TensorKey& key = wanted.tensors[to_index(planning.plan.pieces[piece].tensor)].spec.key;
  return {key.fqn, key.state, box, target};
}

}  // namespace shardwire::restore
