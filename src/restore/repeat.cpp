// SPDX-License-Identifier: Apache-2.0
#include "restore/repeat.hpp"

#include <algorithm>

#include "move/traits.hpp"

namespace shardwire::restore {

namespace {

// Small enough that requesting a lease would take longer than the read.
constexpr ByteCount max_bytes_without_lease = 1u << 20;

bool is_at_device(const move::Transfer& transfer, const Binding& binding) {
  const SourceRegion* region = binding.region_of(binding.position_of(transfer.held_tensor));
  return region != nullptr && (!region->place || region->place->kind != MemoryKind::host);
}

// Host memory that a source has changed shows in its generation. Freed device memory must not be accessed, and a NIC
// may reach an allocation that took its place: the owner grants a lease first, after asking the driver.
bool reads_in_place(const move::Transfer& transfer, const Binding& binding) {
  const move::MethodTraits& method = move::traits_of(transfer.method);
  if (method.carrier == move::Carrier::process) return true;
  const bool direct = method.carrier == move::Carrier::mapping || method.carrier == move::Carrier::reads;
  return direct && !method.staged && !is_at_device(transfer, binding);
}

bool still_bound(const Binding* one) {
  const Binding& binding = *one;
  if (binding.generation != binding.record.generation) return false;
  if (!binding.link) return true;
  return !binding.link->broken() && binding.still_connected();
}

}  // namespace

Source::Leasing leasing_of(const CachedRestore& earlier, std::span<const Binding* const> bindings, Verify verify,
                           std::optional<Method> method, const Catalog& wanted) {
  if (verify != Verify::generation || !keeps_transfers(earlier, method, wanted)) return Source::Leasing::first;
  if (std::ranges::any_of(bindings, &Binding::digests)) return Source::Leasing::first;
  if (!std::ranges::all_of(bindings, still_bound)) return Source::Leasing::first;
  ByteCount bytes = 0;
  bool in_place = true;
  bool packed_at_most = true;
  for (const move::Transfer& transfer : *earlier.transfers) {
    bytes += move::bytes_of(transfer);
    const Binding& binding = *bindings[transfer.peer];
    const bool direct = reads_in_place(transfer, binding);
    in_place = in_place && direct;
    packed_at_most = packed_at_most && (direct || is_packed_by_source(transfer, binding));
  }
  if (packed_at_most && bytes <= max_bytes_without_lease) return Source::Leasing::none;
  return in_place ? Source::Leasing::beside : Source::Leasing::first;
}

bool keeps_transfers(const CachedRestore& earlier, std::optional<Method> method, const Catalog& wanted) {
  return earlier.method == method && same_memory(earlier.wanted, wanted);
}

}  // namespace shardwire::restore
