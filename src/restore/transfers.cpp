// SPDX-License-Identifier: Apache-2.0
#include "restore/transfers.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "memory/strided_copy.hpp"
#include "move/device_limits.hpp"
#include "paths/path_reasons.hpp"

namespace shardwire::restore {

namespace {

using move::Carrier;

// Maximum number of messages per piece: each takes memory here before it is requested.
constexpr ByteCount max_messages_per_piece = 1u << 18;

void name_targets(const Planning& planning, const Manifest& manifest, const TensorPlaces& places,
                  std::vector<Binding>& bindings) {
  for (Binding& binding : bindings) binding.targets.clear();
  if (places.empty()) return;
  std::map<Rank, Binding*> by_holder;
  for (Binding& binding : bindings) {
    binding.targets.resize(binding.tensors.size());
    by_holder.emplace(binding.holder, &binding);
  }
  for (const ScheduledPiece& item : planning.schedule.items) {
    Binding& binding = *by_holder.at(item.source);
    const std::size_t wanted = to_index(planning.plan.pieces[item.piece].tensor);
    binding.targets[binding.position_of(to_index(item.held))][device_of(places, wanted)] +=
        move::bytes_of_box(planning.schedule.box(item), item_size(manifest.tensors[wanted].spec.dtype));
  }
}

/// Binds the pieces of one plan, one after the other.
class Binder {
 public:
  Binder(const Planning& planning, std::span<const Binding* const> bindings, const Destination& destination,
         const PathInputs& inputs, BoundTransfers& out)
      : planning_(planning), bindings_(bindings), destination_(destination), inputs_(inputs), out_(out) {}

  void bind(const ScheduledPiece& item, std::uint32_t source) {
    const Binding& binding = *bindings_[source];
    const TensorLayout& held = binding.manifest->tensors[to_index(item.held)];
    move::Transfer& transfer = out_.transfers->emplace_back(wanted_side(item, source));
    move::Offer& offer = out_.offers.emplace_back();
    if (binding.is_own()) {
      from_own(binding, held, transfer, offer);
    } else {
      from_peer(binding, held, transfer, offer);
    }
  }

 private:
  [[nodiscard]] move::Transfer wanted_side(const ScheduledPiece& item, std::uint32_t source) const {
    const Piece& piece = planning_.plan.pieces[item.piece];
    const TensorLayout& wanted = destination_.manifest.tensors[to_index(piece.tensor)];
    const View& view = destination_.catalog.entries()[to_index(piece.tensor)].view;
    const Rank rank = destination_.catalog.layout_rank();
    move::Transfer transfer;
    transfer.piece = item.piece;
    transfer.peer = source;
    transfer.held_tensor = to_index(item.held);
    transfer.box = planning_.schedule.box(item);
    transfer.wanted =
        box_around(destination_.placed.of(wanted.layout, wanted.spec.shape, rank, view.strides), transfer.box);
    transfer.item_bytes = item_size(wanted.spec.dtype);
    transfer.target = static_cast<std::byte*>(view.data);
    transfer.target_device = device_of(destination_.places, to_index(piece.tensor));
    return transfer;
  }

  void from_own(const Binding& binding, const TensorLayout& held, move::Transfer& transfer, move::Offer& offer) {
    const auto& own = binding.own->tensors[transfer.held_tensor];
    offer.add(Carrier::process, {});
    transfer.held = box_around(destination_.placed.of(held.layout, held.spec.shape, binding.layout_rank, own.strides),
                               transfer.box);
    transfer.source = own.data;
    transfer.source_device = own.device();
    transfer.source_isolated = own.place && !own.place->peer_access;
    if (!move::is_on_device(transfer)) return;
    offer.memory = MemoryKind::cuda;
    limit_by_devices(transfer, offer);
    const bool has_peer_access = !transfer.source_isolated;
    DeviceReach& reach = inputs_.reach;
    if (reach.loads_from(transfer.target_device, transfer.source_device, has_peer_access)) return;
    out_.staged_local[transfer.peer] =
        "device memory is " +
        staged_because({reach.why_not_loaded(transfer.target_device, transfer.source_device, has_peer_access)});
  }

  void from_peer(const Binding& binding, const TensorLayout& held, move::Transfer& transfer, move::Offer& offer) {
    offer.memory = MemoryKind::host;
    for (const ConnectedFabric& one : binding.connected) {
      if (one.path.map) offer.name(Carrier::mapping, name(one));  // for its cost, even if mapping is not possible
    }
    const std::size_t position = binding.position_of(transfer.held_tensor);
    const wire::TensorHandle& handle = binding.handles[position];
    const SourceRegion* region = binding.region_of(position);
    if (region == nullptr) {
      if (binding.path.sent_by) offer_messages(binding, offer);
      // The place at the source matters for the choice only: the source packs or sends from its own memory.
      transfer.held = remote_box(handle, std::numeric_limits<ByteCount>::max(), held, binding.layout_rank, transfer.box,
                                 destination_.placed);
      if (transfer.target_device != memory::on_host) offer_on_device(binding, transfer, held, offer);
      return;
    }
    if (region->place) offer.memory = region->place->kind;
    const bool on_device = transfer.target_device != memory::on_host || offer.memory == MemoryKind::cuda;
    const auto& sent_by = binding.path.sent_by;
    if (!on_device && sent_by && region->access[*sent_by].message) offer_messages(binding, offer);
    const transport::ConstMemory mapped = map(binding, *region, transfer, offer);
    // The mapped size decides, not this answer's: the region may be known from an earlier one.
    const ByteCount bytes = mapped.empty() ? region->bytes : mapped.bytes;
    transfer.held = remote_box(handle, bytes, held, binding.layout_rank, transfer.box, destination_.placed);
    if (!mapped.empty()) {
      transfer.source = mapped.address + handle.offset_bytes;
      transfer.source_device = mapped.place.device;
    }
    offer_reads(binding, *region, handle, transfer, offer);
    if (on_device) offer_on_device(binding, transfer, held, offer);
  }

  [[nodiscard]] transport::ConstMemory map(const Binding& binding, const SourceRegion& region,
                                           const move::Transfer& transfer, move::Offer& offer) const {
    for (std::size_t i = 0; i < region.over.size(); ++i) {
      if (!inputs_.reach.access_into(binding, region, i, transfer.target_device).mapped) continue;
      const transport::ConstMemory mapped = region.over[i]->mapped();
      offer.name(Carrier::mapping, name(binding.connected[i]));
      if (mapped.empty()) continue;
      offer.add(Carrier::mapping, name(binding.connected[i]));
      return mapped;
    }
    return {};
  }

  void offer_reads(const Binding& binding, const SourceRegion& region, const wire::TensorHandle& handle,
                   move::Transfer& transfer, move::Offer& offer) const {
    const auto& read_by = binding.path.read_by;
    if (!read_by || *read_by >= region.over.size() || !region.access[*read_by].readable) return;
    transfer.region = region.over[*read_by].get();
    transfer.region_offset = handle.offset_bytes;
    // Staged reads go into host memory first, whatever the target.
    const bool direct = inputs_.reach.access_into(binding, region, *read_by, transfer.target_device).readable;
    offer.add(Carrier::reads, name(binding.connected[*read_by]), !direct);
  }

  void offer_messages(const Binding& binding, move::Offer& offer) const {
    offer.add(Carrier::messages, name(binding.connected[*binding.path.sent_by]));
  }

  // Messages of device memory are packed into pinned host memory at the source, and unpacked from it here.
  void offer_on_device(const Binding& binding, const move::Transfer& transfer, const TensorLayout& held,
                       move::Offer& offer) {
    offer.memory = MemoryKind::cuda;
    limit_by_devices(transfer, offer);
    if (binding.path.sent_by) {
      offer.remove(Carrier::messages);
      return offer.add(Carrier::messages, name(binding.connected[*binding.path.sent_by]), true);
    }
    const std::size_t position = binding.position_of(transfer.held_tensor);
    if (offer.has(Carrier::mapping) || offer.has_unstaged(Carrier::reads)) return;
    if (may_come_in_rounds(binding, position, transfer.target_device, inputs_.rounds)) return;
    throw Error(ErrorCode::unsupported,
                fmt::format("{}: memory of a device is staged through host memory, and no transport that this "
                            "session has open sends messages to source rank {}: open tcp too",
                            to_string(held.spec.key), to_int(binding.layout_rank)),
                std::vector<Rank>{binding.layout_rank});
  }

  // Transfers of device memory pass the bus of the source or target device.
  void limit_by_devices(const move::Transfer& transfer, move::Offer& offer) {
    offer.limits.fill(move::bus_bytes_per_second);
    if (transfer.source == nullptr) return;
    const int source = transfer.source_device;
    const double memory = source == transfer.target_device ? inputs_.reach.memory_bytes_per_second(source) : 0;
    const double limit = move::device_limit(source, transfer.target_device, memory);
    for (const move::MethodTraits& one : move::method_table) {
      if (one.carrier != Carrier::process && one.carrier != Carrier::mapping) continue;
      offer.limits[static_cast<std::size_t>(one.method)] = limit;
    }
  }

  [[nodiscard]] std::string_view name(const ConnectedFabric& one) const {
    return one.path.cost_name.empty() ? inputs_.fabrics.name(one.fabric) : one.path.cost_name;
  }

  const Planning& planning_;
  std::span<const Binding* const> bindings_;
  const Destination& destination_;
  const PathInputs& inputs_;
  BoundTransfers& out_;
};

void check_messages(const move::Transfer& transfer, const Binding& binding) {
  const move::MethodTraits& method = move::traits_of(transfer.method);
  if (method.carrier != Carrier::messages || !method.staged) return;
  if (move::bytes_of(transfer) / max_messages_per_piece <= binding.max_pack_bytes) return;
  const TensorLayout& held = binding.manifest->tensors[transfer.held_tensor];
  throw Error(ErrorCode::transport_failed,
              fmt::format("source rank {} would send {} bytes of {} in messages of {}", to_int(binding.layout_rank),
                          move::bytes_of(transfer), to_string(held.spec.key), binding.max_pack_bytes),
              std::vector<Rank>{binding.layout_rank});
}

// For people.
std::string why_not_in_rounds(const move::Transfer& transfer, const Binding& binding, const RoundsGroup* rounds) {
  if (rounds == nullptr) {
    return "; rounds are of exchanges, and between members with device memory, or between all where none has any";
  }
  const auto name = [](std::optional<int> device) {
    if (!device) return std::string("unknown memory");
    if (*device == RoundsGroup::nowhere) return std::string("no memory");
    return *device == memory::on_host ? "host memory" : fmt::format("memory of device {}", *device);
  };
  const auto source = binding.device_at_source(binding.position_of(transfer.held_tensor));
  return fmt::format("; from {} there to {} here, and rounds of {} move {} to {}", name(source),
                     name(transfer.target_device), rounds->collective, name(rounds->device_of(binding.record.member)),
                     name(rounds->device_of(rounds->member)));
}

// Mapped, or read by hardware.
bool has_direct_path(const move::Offer& offer, const Binding& binding) {
  if (offer.has(Carrier::mapping)) return true;
  return offer.has_unstaged(Carrier::reads) && binding.path.read_by &&
         !binding.connected[*binding.path.read_by].path.reads_need_peer;
}

}  // namespace

const PlacedBox& box_around(const PlacedBoxes& boxes, const Box& box) {
  const PlacedBox* found = boxes.around(box);
  if (found == nullptr) throw Error(ErrorCode::internal, "the plan names a box that its holder does not hold");
  return *found;
}

const PlacedBox& remote_box(const wire::TensorHandle& handle, ByteCount mapped_bytes, const TensorLayout& held,
                            Rank layout_rank, const Box& box, BoxCache& cache) {
  const auto reject = [&](const std::string& why) {
    return Error(ErrorCode::transport_failed,
                 fmt::format("source rank {} gave a region of {} bytes for {} {} at offset {} with strides {}: {}",
                             to_int(layout_rank), mapped_bytes, to_string(held.spec.key), to_string(box),
                             handle.offset_bytes, to_string(handle.strides), why),
                 std::vector<Rank>{layout_rank});
  };
  try {
    const PlacedBox& placed = box_around(cache.of(held.layout, held.spec.shape, layout_rank, handle.strides), box);
    const memory::StridedCopy read(box, placed, memory::packed(box), item_size(held.spec.dtype));
    if (handle.offset_bytes <= mapped_bytes && read.source_span().end <= mapped_bytes - handle.offset_bytes) {
      return placed;
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::internal) throw;
    throw reject(error.what());
  }
  throw reject("it ends before the box does");
}

std::vector<Binding> name_sources(const Planning& planning, const Manifest& manifest, const TensorPlaces& places) {
  std::vector<Binding> bindings;
  std::map<Rank, std::size_t> by_holder;
  for (const ScheduledPiece& item : planning.schedule.items) {
    const auto [entry, fresh] = by_holder.emplace(item.source, bindings.size());
    if (fresh) {
      Binding& binding = bindings.emplace_back();
      binding.holder = item.source;
      binding.layout_rank = planning.from.rank_of(item.source);
      binding.record = record_of(planning, item.source);
      binding.manifest = planning.from.sections[item.section].manifest;
    }
    bindings[entry->second].tensors.push_back(to_index(item.held));
  }
  for (Binding& binding : bindings) {
    auto& tensors = binding.tensors;
    std::ranges::sort(tensors);
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
  }
  name_targets(planning, manifest, places, bindings);
  return bindings;
}

void name_sources_again(const Planning& planning, const Manifest& manifest, const TensorPlaces& places,
                        std::vector<Binding>& bindings) {
  for (Binding& binding : bindings) binding.record = record_of(planning, binding.holder);
  name_targets(planning, manifest, places, bindings);
}

BoundTransfers make_transfers(const Planning& planning, std::span<const Binding* const> bindings,
                              const Destination& destination, const PathInputs& inputs) {
  std::map<Rank, std::uint32_t> by_holder;
  for (std::uint32_t i = 0; i < bindings.size(); ++i) by_holder.emplace(bindings[i]->holder, i);
  const auto& items = planning.schedule.items;
  BoundTransfers bound;
  bound.transfers = std::make_shared<std::vector<move::Transfer>>();
  bound.transfers->reserve(items.size());
  bound.offers.reserve(items.size());
  Binder binder(planning, bindings, destination, inputs, bound);
  for (const ScheduledPiece& item : items) binder.bind(item, by_holder.at(item.source));
  return bound;
}

move::Predictions choose_methods(const BoundTransfers& bound, std::span<const Binding* const> bindings,
                                 const Planning& planning, const Destination& destination, const CostModel& costs,
                                 std::optional<Method> forced, const RoundsGroup* rounds) {
  move::Predictions predictions;
  try {
    predictions = move::choose_methods(*bound.transfers, bound.offers, costs, forced);
  } catch (const move::ImpossibleMethod& error) {
    const move::Transfer& transfer = (*bound.transfers)[error.transfer];
    const Binding& binding = *bindings[transfer.peer];
    const std::size_t wanted = to_index(planning.plan.pieces[transfer.piece].tensor);
    const std::string rejected = to_text(binding.path.rejected);
    const std::string why = move::carrier_of(error.forced) == Carrier::rounds
                                ? why_not_in_rounds(transfer, binding, rounds)
                                : (rejected.empty() ? "" : "; " + rejected);
    throw Error(
        binding.lacked_resources ? ErrorCode::out_of_resources : ErrorCode::unsupported,
        fmt::format(
            "the method '{}', which the caller has chosen, cannot move {} {} from source rank {} (member {}): {}{}",
            to_string(error.forced), to_string(destination.manifest.tensors[wanted].spec.key), to_string(transfer.box),
            to_int(binding.layout_rank), binding.record.member, error.what(), why),
        std::vector<Rank>{binding.layout_rank});
  }
  for (const move::Transfer& transfer : *bound.transfers) check_messages(transfer, *bindings[transfer.peer]);
  return predictions;
}

bool offer_rounds(BoundTransfers& bound, std::span<const Binding* const> bindings, const RoundsGroup& group) {
  bool indirect = false;
  for (std::size_t i = 0; i < bound.offers.size(); ++i) {
    const move::Transfer& transfer = (*bound.transfers)[i];
    const Binding& binding = *bindings[transfer.peer];
    if (binding.is_own()) continue;
    const std::size_t position = binding.position_of(transfer.held_tensor);
    if (!may_come_in_rounds(binding, position, transfer.target_device, &group)) continue;
    bound.offers[i].add(Carrier::rounds, group.collective);
    indirect = indirect || !has_direct_path(bound.offers[i], binding);
  }
  return indirect;
}

void decide_rounds(BoundTransfers& bound, bool in_rounds) {
  for (move::Offer& offer : bound.offers) {
    if (!offer.has(Carrier::rounds)) continue;
    in_rounds ? offer.keep_only(Carrier::rounds) : offer.remove(Carrier::rounds);
  }
}

}  // namespace shardwire::restore
