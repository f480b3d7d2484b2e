// SPDX-License-Identifier: Apache-2.0
#include "exchange/memory_note.hpp"

#include <map>
#include <utility>
#include <vector>

#include "exchange/parts.hpp"
#include "geometry/by_value.hpp"
#include "geometry/footprint.hpp"
#include "serve/publication.hpp"

namespace shardwire {

namespace {

using wire::ExchangeNote;
using wire::ExchangePart;

// Drops parts to which the note does not refer.
ExchangeNote compact(ExchangeNote note) {
  std::vector<std::uint32_t> kept(note.parts.size(), 0);
  for (const auto& write : note.writes) {
    kept[write.part] = 1;
    for (const std::uint32_t part : write.destroys) kept[part] = 1;
  }
  std::vector<ExchangePart> parts;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    if (kept[i] == 0) continue;
    kept[i] = static_cast<std::uint32_t>(parts.size());
    parts.push_back(std::move(note.parts[i]));
  }
  note.parts = std::move(parts);
  for (auto& write : note.writes) {
    write.part = kept[write.part];
    for (std::uint32_t& part : write.destroys) part = kept[part];
  }
  return note;
}

}  // namespace

MemoryNote note_of_memory(const Catalog& held, const Catalog& wanted,
                          const std::function<std::uint32_t(const TensorKey& key)>& slices_of, BoxCache& boxes) {
  MemoryNote result;
  ExchangeNote& note = result.note;
  std::vector<Claim> claims;
  std::vector<std::uint32_t> part_of;  // by claim
  std::map<ExchangePart, std::uint32_t> known;
  struct Wanted {
    ByteCount bytes = 0;
    const Catalog::Entry* entry = nullptr;
  };
  std::map<std::uint32_t, Wanted> wanted_parts;
  for (const Catalog* catalog : {&held, &wanted}) {
    note.aliases.insert(note.aliases.end(), catalog->aliases().begin(), catalog->aliases().end());
  }
  const auto claim_all = [&](const Catalog& catalog, bool written) {
    for (const Catalog::Entry& entry : catalog.entries()) {
      if (travels_by_value(entry.spec)) continue;  // read by publish(), written at the end
      const PlacedBoxes& whole = boxes_of(entry, catalog.layout_rank(), boxes);
      const ByteCount item_bytes = item_size(entry.spec.dtype);
      ExchangePart part{entry.spec.key, 0, slices_of(entry.spec.key)};
      for (; part.index < part.count; ++part.index) {
        const PlacedBoxes inside = boxes_in(part, entry.spec.shape, whole);
        if (inside.all().empty()) continue;
        const auto next = static_cast<std::uint32_t>(known.size());
        const auto [found, fresh] = known.emplace(part, next);
        if (fresh) note.parts.push_back(part);
        if (written) wanted_parts[found->second] = {static_cast<ByteCount>(inside.elements()) * item_bytes, &entry};
        claims.push_back({Footprint(entry.view.data, inside, item_bytes), written});
        part_of.push_back(found->second);
      }
    }
  };
  claim_all(wanted, true);
  claim_all(held, false);
  std::map<std::uint32_t, std::vector<std::uint32_t>> destroys;  // by wanted part
  find_conflicts(claims, [&](const Conflict& conflict) {
    if (!claims[conflict.other].written) destroys[part_of[conflict.written]].push_back(part_of[conflict.other]);
    return true;
  });
  // All parts of a tensor are ordered if any part blocks another tensor; all other tensors are read at once.
  for (const auto& [part, others] : destroys) result.aliased.insert(wanted_parts.at(part).entry);
  for (const auto& [part, what] : wanted_parts) {
    if (result.aliased.contains(what.entry)) note.writes.push_back({part, what.bytes, std::move(destroys[part])});
  }
  note = compact(std::move(note));
  return result;
}

}  // namespace shardwire
