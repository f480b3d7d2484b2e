// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace shardwire {

/// Value of assigning a source to a target.
struct Edge {
  std::uint32_t source = 0;
  std::uint64_t weight = 0;  ///< above 0, below 2^62
};

/// Edges by target: those of target t are edges[first[t]] .. edges[first[t + 1]], at most one per source.
struct BipartiteGraph {
  std::uint32_t sources = 0;
  std::vector<std::uint32_t> first{0};
  std::vector<Edge> edges;

  [[nodiscard]] std::uint32_t targets() const { return static_cast<std::uint32_t>(first.size()) - 1; }
};

inline constexpr std::uint32_t unassigned = ~0U;

/// A matching of greatest total weight and the prices that prove it: for every edge target_price + source_price >=
/// weight, with equality for taken edges; unassigned nodes have price 0.
struct Assignment {
  std::vector<std::uint32_t> source_of;  ///< by target
  std::vector<std::uint64_t> target_price;
  std::vector<std::uint64_t> source_price;
};

/// Shortest augmenting paths over reduced costs, after Jonker and Volgenant; sparse, exact, deterministic.
Assignment assign(const BipartiteGraph& graph);

}  // namespace shardwire
