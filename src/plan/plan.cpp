// SPDX-License-Identifier: Apache-2.0
#include "shardwire/plan.hpp"

#include <algorithm>

namespace shardwire {

JobLayout JobLayout::uniform(int ranks, std::vector<TensorLayout> tensors) {
  Section section{std::make_shared<const Manifest>(Manifest{ranks, std::move(tensors)}), {}};
  for (int rank = 0; rank < ranks; ++rank) section.ranks.push_back(Rank{rank});
  return {ranks, {std::move(section)}};
}

Rank JobLayout::rank_of(Rank holder) const {
  return to_int(holder) < ranks ? holder : copies[static_cast<std::size_t>(to_int(holder) - ranks)];
}

JobLayout JobLayout::without(std::span<const Rank> lost) const {
  std::vector<Rank> gone(lost.begin(), lost.end());
  std::sort(gone.begin(), gone.end());
  JobLayout rest = *this;
  rest.copies.clear();
  for (int holder = ranks; holder < holders(); ++holder) {
    if (std::binary_search(gone.begin(), gone.end(), Rank{holder})) continue;
    const Rank rank = rank_of(Rank{holder});
    const auto [first, end] = std::equal_range(gone.begin(), gone.end(), rank);
    first == end ? rest.copies.push_back(rank) : void(gone.erase(first, end));
  }
  // Empty sections remain, so that section indices stay valid.
  for (Section& section : rest.sections) {
    std::erase_if(section.ranks, [&](Rank rank) { return std::binary_search(gone.begin(), gone.end(), rank); });
  }
  return rest;
}

Plan plan(const JobLayout& from, const JobLayout& to, Rank target) {
  return Planner(from, to).plan(target);
}

std::vector<Delivery> plan_for_source(const JobLayout& from, const JobLayout& to, Rank source) {
  return Planner(from, to).deliveries(source);
}

ElementCount runs_of(const Box& box, const PlacedBox& held, const PlacedBox& wanted) {
  // Extends the run by any dim whose neighbours lie one run apart on both sides, whatever the order of the dims in
  // memory.
  ElementCount run = 1;
  std::uint32_t joined = 0;
  for (bool grown = true; grown;) {
    grown = false;
    for (std::size_t dim = box.dims(); dim-- > 0;) {
      if ((joined >> dim & 1U) != 0 || box.size[dim] == 1) continue;
      if (held.local_strides[dim] != run || wanted.local_strides[dim] != run) continue;
      run *= box.size[dim];
      joined |= 1U << dim;
      grown = true;
    }
  }
  return box.empty() ? 0 : box.volume() / run;
}

}  // namespace shardwire
