// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "shardwire/plan.hpp"
#include "shardwire/session.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// What one source publishes by value. Sources with equal values share one list.
struct ValueSource {
  Rank layout_rank{};
  const std::vector<wire::NamedValue>* values = nullptr;
};

/// Whether this rank wants an element of it, and it is the only one.
bool wanted_by_value(const Catalog::Entry& entry, Rank layout_rank);
/// Whether anything comes by value that this rank wants.
bool wants_values(const Catalog& wanted);

/// What the pieces of a plan leave open: values, one-element tensors, and what no source has.
struct ResolvedValues {
  std::map<TensorKey, Value> values;  ///< by wanted key; of one-element tensors those that this rank wants
  std::vector<TensorKey> skipped;     ///< in the order of the catalog
  std::vector<TensorId> zeroed;
  std::vector<TensorKey> absent;  ///< no source has them, and they have to be there: their gaps are in the plan
  std::optional<Error> refusal;   ///< sources that disagree, or have something else under a wanted key
  bool values_unknown = false;    ///< nothing was decided: without `sources` nobody can tell what is absent
};

/// Completes `plan`, the plan of what `wanted` lists: takes out the gaps of tensors that may be absent and are, adds one
/// for each value that has to be there and is not, and picks the values by those who have authority (layout maths M9).
/// `sources` may be left out as long as nothing depends on values. Pure. Cost: O(values and tensors that are published).
ResolvedValues resolve_values(const Catalog& wanted, const JobLayout& from, Plan& plan,
                              std::optional<std::span<const ValueSource>> sources);

/// Throws like require_no_gaps, and says of keys that no source has what can be done about them.
void require_complete(const std::vector<Gap>& gaps, const std::vector<TensorKey>& absent);

}  // namespace shardwire
