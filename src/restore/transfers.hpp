// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catalog/tensor_places.hpp"
#include "geometry/strides.hpp"
#include "move/choice.hpp"
#include "move/transfer.hpp"
#include "restore/binding.hpp"
#include "restore/path_decision.hpp"
#include "restore/planning.hpp"
#include "shardwire/plan.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// The one of `boxes` around `box`. Errors: throws Error{internal} if there is none.
const PlacedBox& box_around(const PlacedBoxes& boxes, const Box& box);

/// The box of rank `layout_rank` around `box`, in the memory of `handle`. Verifies the source's statement: every byte
/// of `box` has to lie inside the `mapped_bytes` mapped of its region.
/// Errors: throws Error{transport_failed} naming rank, tensor and handle for a handle that reaches outside, overflows
///         or does not go with the layout; Error{internal} when that rank does not hold `box`.
const PlacedBox& remote_box(const wire::TensorHandle& handle, ByteCount mapped_bytes, const TensorLayout& held,
                            Rank layout_rank, const Box& box, BoxCache& cache);

/// The memory of one rank's wanted tensors.
struct Destination {
  const Catalog& catalog;
  const Manifest& manifest;    ///< of the catalog
  const TensorPlaces& places;  ///< of the catalog
  BoxCache& placed;            ///< places of boxes, here and at the sources
};

/// Lists the sources of a schedule: one unbound binding per source, in the order in which the schedule first names
/// them, with the tensors read from it and their target devices. Pure.
std::vector<Binding> name_sources(const Planning& planning, const Manifest& manifest, const TensorPlaces& places);
/// Updates bindings of an earlier restore of the same plan: current records and target devices.
void name_sources_again(const Planning& planning, const Manifest& manifest, const TensorPlaces& places,
                        std::vector<Binding>& bindings);

/// The pieces of a plan, bound to addresses.
struct BoundTransfers {
  std::shared_ptr<std::vector<move::Transfer>>
      transfers;                    ///< by item of the schedule. Owners: this, then engine and cache
  std::vector<move::Offer> offers;  ///< of these: the possible methods of each
  /// By source: why copies within this process are staged through host memory, if they are.
  std::map<std::uint32_t, std::string> staged_local;
};

/// The transfers of a plan with their methods.
struct ChosenTransfers {
  std::shared_ptr<const std::vector<move::Transfer>> transfers;  ///< null: not chosen yet. Owners: as BoundTransfers
  std::map<std::uint32_t, std::string> staged_local;             ///< see BoundTransfers
  move::Predictions predictions;
};

/// Binds every piece of the plan to the addresses of both sides, and lists its possible methods.
/// Errors: throws Error{transport_failed} naming a source whose handles do not fit its layout, and Error{unsupported}
///         for device memory without a path.
/// Cost: O(pieces).
BoundTransfers make_transfers(const Planning& planning, std::span<const Binding* const> bindings,
                              const Destination& destination, const PathInputs& inputs);

/// Chooses the method of every transfer, the cheapest or `forced`.
/// Errors: throws Error{unsupported}, or Error{out_of_resources} if that is the cause, naming the first transfer that
///         `forced` cannot move; Error{transport_failed} for a source whose messages are too small.
move::Predictions choose_methods(const BoundTransfers& bound, std::span<const Binding* const> bindings,
                                 const Planning& planning, const Destination& destination, const CostModel& costs,
                                 std::optional<Method> forced, const RoundsGroup* rounds);

/// Adds rounds to the methods of all that they may carry. Whether some of it is neither mapped nor read by hardware. Pure.
bool offer_rounds(BoundTransfers& bound, std::span<const Binding* const> bindings, const RoundsGroup& group);
/// Leaves these bytes to rounds, or takes rounds from the methods again. Pure.
void decide_rounds(BoundTransfers& bound, bool in_rounds);

}  // namespace shardwire::restore
