// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "paths/path_choice.hpp"
#include "restore/binding.hpp"
#include "restore/device_reach.hpp"
#include "restore/rounds_step.hpp"

namespace shardwire::restore {

/// Inputs of one restore's path decisions, apart from the binding.
struct PathInputs {
  const FabricTable& fabrics;
  DeviceReach& reach;
  const RoundsGroup* rounds = nullptr;  ///< of the exchange around this restore; null: none
};

/// Whether rounds of a collective carry the tensor at this position to `target_device`.
[[nodiscard]] bool may_come_in_rounds(const Binding& binding, std::size_t position, int target_device,
                                      const RoundsGroup* rounds);

/// The worst of the best paths of all memory read from this source, a rank of transport::Preference; no_path if some
/// has none, or if the binding is still empty.
[[nodiscard]] int worst_path(const Binding& binding, const PathInputs& inputs);

/// Adds a newly bound fabric to the connected ones, with its access to each region.
void add_fabric(Binding& binding, BoundFabric bound, const PathInputs& inputs);

/// Decides which connected fabrics carry this source's bytes, with reasons for memory that is not mapped.
/// Errors: throws Error{unsupported}, or Error{out_of_resources} if that is the cause, if some of its memory has no
///         path; names the source and every reason.
[[nodiscard]] PathDecision decide_path(const Binding& binding, const PathInputs& inputs);

}  // namespace shardwire::restore
