// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <vector>

#include "shardwire/plan.hpp"
#include "shardwire/session.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// The values that one source publishes. Sources with equal values share one list.
struct ValueSource {
  Rank layout_rank{};
  const std::vector<wire::NamedValue>* values = nullptr;
};

/// Whether this rank wants an element of a one-element tensor.
bool wanted_by_value(const Catalog::Entry& entry, Rank layout_rank);
/// Sources whose values a restore needs.
enum class ValueScope : std::uint8_t {
  none,
  own_rank,  ///< the source of this layout rank: all wanted values are Agree::per_rank
  all,
};
ValueScope value_scope(const Catalog& wanted);

/// A required key without a source.
struct AbsentKey {
  TensorKey key;
  std::optional<Rank> source{};  ///< the only source rank that may give it (Agree::per_rank)
  bool operator==(const AbsentKey&) const = default;
};

/// The rest of a plan beyond its pieces: values, one-element tensors, and keys without a source.
struct ResolvedValues {
  std::map<TensorKey, SharedValue> values;  ///< by wanted key; of one-element tensors those that this rank wants
  std::vector<TensorKey> skipped;           ///< in the order of the catalog
  std::vector<TensorId> zeroed;
  std::vector<AbsentKey> absent;  ///< their gaps are in the plan
  std::optional<Error> refusal;   ///< sources disagree, or have something else under a wanted key
  bool values_unknown = false;    ///< undecided: absence of a tensor shows only in the values of all sources
};

/// How the values of one-element tensors are chosen.
Agree agreement_on_elements(Replicas replicas);

/// Completes `plan`, the plan for `wanted`: removes the gaps of tensors that are absent as permitted, adds one for each
/// required value that is absent, and selects values as their Agree says, those of one-element tensors as `elements` says
/// (plan/authority.hpp). `sources` are those in `scope`, which is value_scope(wanted) or `all`. Pure. Cost: O(values and tensors that are published).
ResolvedValues resolve_values(const Catalog& wanted, const JobLayout& from, Plan& plan,
                              std::span<const ValueSource> sources, ValueScope scope,
                              Agree elements = Agree::authoritative);

/// Throws like require_no_gaps, and adds a remedy for keys without a source.
void require_complete(const std::vector<Gap>& gaps, const std::vector<AbsentKey>& absent);

}  // namespace shardwire::restore
