// SPDX-License-Identifier: Apache-2.0
#include "restore/cached_restore.hpp"

#include <algorithm>

namespace shardwire::restore {

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

std::unique_ptr<CachedRestore> RestoreCache::take(const std::string& from, const Catalog& wanted, Replicas replicas) {
  const auto found = std::find_if(cached_.begin(), cached_.end(), [&](const auto& one) {
    return one->from == from && one->replicas == replicas && alike(one->wanted, wanted);
  });
  if (found == cached_.end()) return nullptr;
  auto taken = std::move(*found);
  cached_.erase(found);
  return taken;
}

void RestoreCache::keep(std::unique_ptr<CachedRestore> cached) {
  // A trainer restores one catalog, or alternates between two. More would keep mappings of memory that peers have
  // freed.
  constexpr std::size_t max_cached = 2;
  // Enough for the next restore to begin without page faults; the rest is freed.
  constexpr ByteCount max_staging = 64u << 20;
  if (cached_.size() >= max_cached) cached_.erase(cached_.begin());
  for (const auto& older : cached_) older->staging.reset();
  for (Binding& binding : cached->bindings) {
    if (binding.link && !binding.link->is_bound(cached->from, binding.generation)) binding.unbind();
  }
  if (cached->staging) cached->staging->trim(max_staging);
  cached_.push_back(std::move(cached));
}

void RestoreCache::forget(const SourceLink* link) {
  std::erase_if(cached_, [&](const auto& one) {
    return std::ranges::any_of(one->bindings, [&](const Binding& binding) { return binding.link.get() == link; });
  });
}

void RestoreCache::unbind(const SourceLink* link, const std::string& publication) {
  for (const auto& one : cached_) {
    if (one->from != publication) continue;
    for (Binding& binding : one->bindings) {
      if (binding.link.get() == link) binding.unbind();
    }
  }
}

}  // namespace shardwire::restore
