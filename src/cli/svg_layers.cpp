// SPDX-License-Identifier: Apache-2.0
#include "cli/svg_layers.hpp"

#include <algorithm>
#include <map>
#include <span>

#include "geometry/overlap.hpp"

namespace shardwire::cli {
namespace {

constexpr std::size_t max_compared = 4000;  // boxes; each is compared with each

bool any_overlap(const std::vector<std::vector<Box>>& of_rank, const Layers& layers) {
  for (std::size_t layer = 0; layer < layers.count; ++layer) {
    std::vector<Box> boxes;
    for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
      if (layers.of_rank[rank] == layer) boxes.insert(boxes.end(), of_rank[rank].begin(), of_rank[rank].end());
    }
    if (find_overlap(boxes)) return true;
  }
  return false;
}

bool meets(const std::vector<Box>& some, const std::vector<Box>& others) {
  return std::any_of(some.begin(), some.end(), [&](const Box& box) {
    return std::any_of(others.begin(), others.end(),
                       [&](const Box& other) { return intersect(box, other).has_value(); });
  });
}

}  // namespace

Layers layers_of(const std::vector<std::pair<Box, Rank>>& boxes, int ranks) {
  std::vector<std::vector<Box>> of_rank(static_cast<std::size_t>(ranks));
  for (const auto& [box, rank] : boxes) of_rank[static_cast<std::size_t>(to_int(rank))].push_back(box);
  Layers layers;
  layers.of_rank.resize(of_rank.size());
  // Most replicas hold identical boxes.
  std::map<std::vector<Box>, std::size_t> seen;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    if (of_rank[rank].empty()) continue;
    layers.of_rank[rank] = seen[of_rank[rank]]++;
    layers.count = std::max(layers.count, layers.of_rank[rank] + 1);
  }
  if (!any_overlap(of_rank, layers)) return layers;
  if (boxes.size() > max_compared) {
    layers.overlap = true;
    return layers;
  }
  std::vector<std::vector<Box>> taken;
  for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
    std::size_t layer = 0;
    while (layer < taken.size() && meets(of_rank[rank], taken[layer])) ++layer;
    if (layer == taken.size()) taken.emplace_back();
    taken[layer].insert(taken[layer].end(), of_rank[rank].begin(), of_rank[rank].end());
    layers.of_rank[rank] = layer;
  }
  layers.count = std::max<std::size_t>(1, taken.size());
  return layers;
}

}  // namespace shardwire::cli
