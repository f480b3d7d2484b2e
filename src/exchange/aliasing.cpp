// SPDX-License-Identifier: Apache-2.0
#include "exchange/aliasing.hpp"

#include <fmt/core.h>

#include <string>

#include "geometry/by_value.hpp"
#include "geometry/footprint.hpp"

namespace shardwire {

namespace {

Footprint footprint_of(const detail::PublicationState& publication, std::size_t index, BoxCache& boxes) {
  const auto& tensor = publication.tensors[index];
  const auto& [spec, layout] = publication.described.manifest->tensors[index];
  if (travels_by_value(spec)) return {nullptr, 0};  // already read
  return {tensor.data, boxes.of(layout, spec.shape, publication.layout_rank, tensor.strides), item_size(spec.dtype)};
}

}  // namespace

void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published) {
  std::vector<Claim> claims;
  std::vector<const TensorKey*> keys;
  BoxCache boxes;
  const auto add = [&](Footprint footprint, bool written, const TensorKey& key) {
    claims.push_back({std::move(footprint), written});
    keys.push_back(&key);
  };
  for (const Catalog::Entry& entry : wanted.entries()) {
    add({entry.view.data, boxes_of(entry, wanted.layout_rank(), boxes), item_size(entry.spec.dtype)}, true,
        entry.spec.key);
  }
  for (const auto& publication : published) {
    if (publication->snapshot || publication->retired) continue;
    for (std::size_t i = 0; i < publication->tensors.size(); ++i) {
      add(footprint_of(*publication, i, boxes), false, publication->described.manifest->tensors[i].spec.key);
    }
  }
  const auto name = [&](std::size_t claim) {
    return fmt::format("{} {}", claims[claim].written ? "wanted" : "published", to_string(*keys[claim]));
  };
  find_conflicts(claims, [&](const Conflict& conflict) -> bool {
    const bool source = !claims[conflict.other].written;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "layout rank {}: memory of {} overlaps memory of {}{}: {}", to_int(wanted.layout_rank()),
            name(conflict.written), name(conflict.other),
            conflict.exact ? ""
                           : fmt::format(", or interleaves with it in more than {} pieces, which are not compared",
                                         max_compared_runs),
            source ? "restore into other memory, publish a snapshot, retire the publication first, or use exchange()"
                   : "give each its own memory"));
  });
}

void check_update(const detail::PublicationState& live, const detail::PublicationState& fresh) {
  if (live.snapshot || fresh.snapshot) return;
  std::vector<Claim> claims;
  BoxCache boxes;
  for (std::size_t i = 0; i < fresh.tensors.size(); ++i) claims.push_back({footprint_of(fresh, i, boxes), true});
  const std::size_t of_fresh = claims.size();
  for (std::size_t i = 0; i < live.tensors.size(); ++i) claims.push_back({footprint_of(live, i, boxes), false});
  find_conflicts(claims, [&](const Conflict& conflict) -> bool {
    if (conflict.other < of_fresh) return true;  // tensors of `fresh` may share memory with one another
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("layout rank {}: the update of '{}' has {} in memory where {} is published in place: update "
                    "with a snapshot or from other memory, or retire the publication first",
                    to_int(fresh.layout_rank), fresh.name,
                    to_string(fresh.described.manifest->tensors[conflict.written].spec.key),
                    to_string(live.described.manifest->tensors[conflict.other - of_fresh].spec.key)));
  });
}

}  // namespace shardwire
