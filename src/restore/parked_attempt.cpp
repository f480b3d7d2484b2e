// SPDX-License-Identifier: Apache-2.0
#include "restore/parked_attempt.hpp"

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

bool alike(const Catalog& a, const Catalog& b) {
  if (a.same(b)) return true;
  const auto same_entry = [](const Catalog::Entry& x, const Catalog::Entry& y) {
    return x.spec == y.spec && x.layout == y.layout && x.view.strides == y.view.strides && x.absent == y.absent;
  };
  const auto same_value = [](const Catalog::ValueEntry& x, const Catalog::ValueEntry& y) {
    return x.key == y.key && x.absent == y.absent && x.agree == y.agree;
  };
  return a.layout_rank() == b.layout_rank() && a.ranks() == b.ranks() && a.aliases() == b.aliases() &&
         std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), b.entries().end(), same_entry) &&
         std::equal(a.values().begin(), a.values().end(), b.values().begin(), b.values().end(), same_value);
}

bool same_memory(const Catalog& a, const Catalog& b) {
  if (a.same(b)) return true;
  return std::equal(a.entries().begin(), a.entries().end(), b.entries().begin(), b.entries().end(),
                    [](const Catalog::Entry& x, const Catalog::Entry& y) { return x.view.data == y.view.data; });
}

bool same_sources(const std::vector<wire::PublicationRecord>& a, const std::vector<wire::PublicationRecord>& b) {
  return std::equal(
      a.begin(), a.end(), b.begin(), b.end(), [](const wire::PublicationRecord& x, const wire::PublicationRecord& y) {
        return x.member == y.member && x.epoch == y.epoch && x.layout_rank == y.layout_rank && x.manifest == y.manifest;
      });
}

std::unique_ptr<ParkedAttempt> RestoreCache::take(const std::string& from, const Catalog& wanted, Replicas replicas) {
  const auto found = std::find_if(parked_.begin(), parked_.end(), [&](const auto& one) {
    return one->from == from && one->replicas == replicas && alike(*one->wanted.catalog, wanted);
  });
  if (found == parked_.end()) return nullptr;
  auto taken = std::move(*found);
  parked_.erase(found);
  return taken;
}

void RestoreCache::keep(std::unique_ptr<ParkedAttempt> parked) {
  // A trainer restores one catalog, or alternates between two. More would keep mappings of memory that peers have
  // freed.
  constexpr std::size_t max_parked = 2;
  // Enough for the next restore to begin without page faults; the rest is freed.
  constexpr ByteCount max_staging = 64u << 20;
  if (parked_.size() >= max_parked) parked_.erase(parked_.begin());
  for (const auto& older : parked_) older->staging.reset();
  for (Binding& binding : parked->bindings) {
    if (binding.link && !binding.link->is_bound(parked->from, binding.generation)) binding.unbind();
  }
  if (parked->staging) parked->staging->trim(max_staging);
  parked_.push_back(std::move(parked));
}

void RestoreCache::forget(const SourceLink* link) {
  std::erase_if(parked_, [&](const auto& one) {
    return std::ranges::any_of(one->bindings, [&](const Binding& binding) { return binding.link.get() == link; });
  });
}

void RestoreCache::unbind(const SourceLink* link, const std::string& publication) {
  for (const auto& one : parked_) {
    if (one->from != publication) continue;
    for (Binding& binding : one->bindings) {
      if (binding.link.get() == link) binding.unbind();
    }
  }
}

Source::Leasing leasing_of(const ParkedAttempt& earlier, std::span<const Binding* const> bindings, Verify verify,
                           std::optional<Method> method, const Catalog& wanted) {
  if (verify != Verify::generation || !keeps_transfers(earlier, method, wanted)) return Source::Leasing::first;
  if (std::ranges::any_of(bindings, &Binding::digests)) return Source::Leasing::first;
  if (!std::ranges::all_of(bindings, still_bound)) return Source::Leasing::first;
  ByteCount bytes = 0;
  bool in_place = true;
  bool packed_at_most = true;
  for (const move::Transfer& transfer : *earlier.chosen.transfers) {
    bytes += move::bytes_of(transfer);
    const Binding& binding = *bindings[transfer.peer];
    const bool direct = reads_in_place(transfer, binding);
    in_place = in_place && direct;
    packed_at_most = packed_at_most && (direct || is_packed_by_source(transfer, binding));
  }
  if (packed_at_most && bytes <= max_bytes_without_lease) return Source::Leasing::none;
  return in_place ? Source::Leasing::beside : Source::Leasing::first;
}

bool keeps_transfers(const ParkedAttempt& earlier, std::optional<Method> method, const Catalog& wanted) {
  return earlier.method == method && same_memory(*earlier.wanted.catalog, wanted);
}

}  // namespace shardwire::restore
