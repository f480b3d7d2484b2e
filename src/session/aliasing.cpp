// SPDX-License-Identifier: Apache-2.0
#include "session/aliasing.hpp"

#include <fmt/core.h>

#include <string>

#include "session/footprint.hpp"

namespace shardwire {

void check_aliasing(const Catalog& wanted, const std::vector<std::shared_ptr<detail::PublicationState>>& published) {
  std::vector<Claim> claims;
  std::vector<const TensorKey*> keys;
  BoxCache boxes;
  const auto add = [&](Footprint footprint, bool written, const TensorKey& key) {
    claims.push_back({std::move(footprint), written});
    keys.push_back(&key);
  };
  for (const Catalog::Entry& entry : wanted.entries()) {
    add({entry.view.data, boxes_of(entry, wanted.place(), boxes), item_size(entry.spec.dtype)}, true, entry.spec.key);
  }
  for (const Catalog::ValueEntry& entry : wanted.values()) {
    if (entry.destination == nullptr) continue;
    add({entry.destination, std::get<TensorValue>(entry.value).bytes.size()}, true, entry.key);
  }
  for (const auto& publication : published) {
    if (publication->snapshot || publication->retired) continue;
    for (std::size_t i = 0; i < publication->tensors.size(); ++i) {
      const auto& tensor = publication->tensors[i];
      const auto& [spec, layout] = publication->described.manifest->tensors[i];
      add({tensor.data, boxes.of(layout, spec.shape, publication->place, tensor.strides), item_size(spec.dtype)}, false,
          spec.key);
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
            "place {}: memory of {} overlaps memory of {}{}: {}", to_int(wanted.place()), name(conflict.written),
            name(conflict.other),
            conflict.exact ? ""
                           : fmt::format(", or interleaves with it in more than {} pieces, which are not compared",
                                         most_compared_runs),
            source ? "restore into other memory, publish a snapshot, retire the publication first, or use exchange()"
                   : "give each its own memory"));
  });
}

}  // namespace shardwire
