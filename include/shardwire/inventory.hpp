// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/export.hpp"
#include "shardwire/plan.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// What the members of a job publish under one name at one step. See Session::inventory().
struct Inventory {
  struct Publisher {
    Rank rank{};     ///< in the layouts of the publication
    int member = 0;  ///< of the session

    bool operator==(const Publisher&) const = default;
  };

  std::int64_t step = 0;
  std::vector<Publisher> publishers;  ///< ascending by rank; several may publish one. Empty: none at the step
  /// Tensors and aliases, with layouts, by rank: one side of plan(), or a catalog to create missing state from.
  JobLayout held;
  std::vector<TensorKey> values;  ///< that any of them publishes, apart from one-element tensors; ascending
  std::vector<Rank> absent;       ///< ranks of the layouts without a publication at the step; ascending
  /// Other members that could still publish an absent rank at this step: they have not left, and publish nothing
  /// later. This member is one of them only while it is publishing.
  /// Empty: `publishers` is final for this step.
  std::vector<int> awaited;

  /// A case file (docs/case-format.md) of a restore of `target` from these publications, so that `shardwire plan`, `perf`
  /// and `doctor --measure` repeat it. Session::gather_layouts() returns the target of a job. Without `target`, the ranks
  /// of the layouts restore what they publish. An absent rank is lost in the source. Values are left out, and tensors that
  /// one side alone has. A layout that case files have no words for (flat, packed, within, boxes with places) stands there
  /// as the boxes of each rank.
  /// Errors: throws Error{invalid_argument} if the sides have no tensor in common, Error{unsupported} for an empty name or
  ///         state; for a `target` as Planner.
  [[nodiscard]] std::string to_case() const;
  [[nodiscard]] std::string to_case(const JobLayout& target) const;
};

}  // namespace shardwire
SHARDWIRE_API_END
