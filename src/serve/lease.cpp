// SPDX-License-Identifier: Apache-2.0
#include "serve/lease.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "geometry/overlap.hpp"
#include "serve/refusal.hpp"

namespace shardwire {

namespace {

// Refuses overlapping boxes, because the index finds an element fast only among disjoint boxes.
PlacedBoxes indexed(std::vector<Box> boxes, const TensorSpec& spec) {
  std::vector<PlacedBox> placed;
  placed.reserve(boxes.size());
  for (const Box& box : boxes) {
    if (box.dims() != spec.shape.size())
      refuse_request(fmt::format("{} has boxes of {} dims", to_string(spec.key), box.dims()));
    placed.push_back({box, 0, {}});
  }
  if (find_overlap(boxes)) refuse_request(fmt::format("boxes of {} overlap in a lease", to_string(spec.key)));
  return PlacedBoxes(std::move(placed));
}

}  // namespace

bool covers(const Lease& lease, const wire::RequestedBox& part) {
  const auto found = std::lower_bound(lease.tensors.begin(), lease.tensors.end(), part.tensor,
                                      [](const auto& one, std::uint32_t id) { return one.id < id; });
  if (found == lease.tensors.end() || found->id != part.tensor) return false;
  return found->whole || found->boxes.around(part.box) != nullptr;
}

std::vector<Lease::Tensor> leased_tensors(const wire::Lease& request, const Manifest& manifest) {
  std::map<std::uint32_t, std::vector<Box>> boxes;  // none: the whole tensor
  for (const wire::TensorRange& range : request.ranges) {
    if (range.tensor >= manifest.tensors.size()) {
      refuse_request(fmt::format("'{}' has no tensor {}", request.publication, range.tensor));
    }
    const auto [entry, fresh] = boxes.try_emplace(range.tensor);
    if (range.boxes.empty() || (!fresh && entry->second.empty())) {
      entry->second.clear();
    } else {
      entry->second.insert(entry->second.end(), range.boxes.begin(), range.boxes.end());
    }
  }
  std::vector<Lease::Tensor> tensors;
  tensors.reserve(boxes.size());
  for (auto& [id, list] : boxes) {
    const bool whole = list.empty();
    tensors.push_back({id, whole, whole ? PlacedBoxes() : indexed(std::move(list), manifest.tensors[id].spec)});
  }
  return tensors;
}

}  // namespace shardwire
