// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "shardwire/layout.hpp"

// The meaning of each layout kind, element by element from its definition: slow, and without boxes or intervals, so
// that it shares no idea with the code under test.
namespace shardwire::test {

using Indices = std::vector<Extent>;
/// A rank's local buffer: the row-major global index of the element at each local position, -1 for padding.
using Slots = std::vector<ElementCount>;
/// The indices of each dim that a rank holds, in local order, if its buffer is an array of their products. nullopt if
/// the rank is not in the layout.
using Lists = std::optional<std::vector<Indices>>;

/// The meaning of a layout, for every shape and rank. `lists` is empty for kinds that are not products.
struct Meaning {
  std::function<Slots(const Extents& shape, int rank)> slots;
  std::function<Lists(const Extents& shape, int rank)> lists{};
};

inline Indices all_of(Extent extent) {
  Indices all(static_cast<std::size_t>(extent));
  std::iota(all.begin(), all.end(), Extent{0});
  return all;
}

inline std::vector<Indices> whole_of(const Extents& shape) {
  std::vector<Indices> lists;
  for (const Extent extent : shape) lists.push_back(all_of(extent));
  return lists;
}

/// torch.chunk of a list.
inline Indices chunk_of_list(const Indices& all, Extent parts, Extent index) {
  const auto n = static_cast<Extent>(all.size());
  const Extent step = (n + parts - 1) / parts;
  Indices part;
  for (Extent i = 0; i < n; ++i) {
    if (step > 0 && i / step == index) part.push_back(all[static_cast<std::size_t>(i)]);
  }
  return part;
}

/// DTensor's _StridedShard of a list.
inline Indices strided_of_list(const Indices& all, Extent factor, Extent parts, Extent index) {
  Indices held;
  for (Extent j = 0; j < factor; ++j) {
    const Indices part = chunk_of_list(chunk_of_list(all, factor, j), parts, index);
    held.insert(held.end(), part.begin(), part.end());
  }
  return held;
}

/// Visits every index of an array, the last of `order` fastest.
inline void for_each_index(const Extents& shape, const std::vector<int>& order,
                           const std::function<void(const Extents&)>& visit) {
  Extents at = Extents::filled(shape.size(), 0);
  const std::function<void(std::size_t)> walk = [&](std::size_t depth) {
    if (depth == shape.size()) return visit(at);
    const auto dim = static_cast<std::size_t>(order[depth]);
    for (at[dim] = 0; at[dim] < shape[dim]; ++at[dim]) walk(depth + 1);
  };
  walk(0);
}

inline std::vector<int> row_major(std::size_t dims) {
  std::vector<int> order(dims);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

inline ElementCount global_index(const Extents& shape, const Extents& at) {
  ElementCount index = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) index = index * shape[dim] + at[dim];
  return index;
}

/// The products of the lists; the last dim of `order` varies fastest.
inline Slots product_of_lists(const Extents& shape, const Lists& lists, const std::vector<int>& order) {
  Slots slots;
  if (!lists) return slots;
  Extents sizes = shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) sizes[dim] = static_cast<Extent>((*lists)[dim].size());
  for_each_index(sizes, order, [&](const Extents& local) {
    Extents at = local;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) at[dim] = (*lists)[dim][static_cast<std::size_t>(local[dim])];
    slots.push_back(global_index(shape, at));
  });
  return slots;
}

inline Meaning of_lists(std::function<Lists(const Extents&, int)> lists) {
  return {[lists](const Extents& shape, int rank) {
            return product_of_lists(shape, lists(shape, rank), row_major(shape.size()));
          },
          lists};
}

inline std::size_t from_front(int dim, const Extents& shape) {
  return static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim);
}

inline Meaning mean_replicated() {
  return of_lists([](const Extents& shape, int) { return whole_of(shape); });
}

inline Meaning mean_chunk(int dim, int over) {
  return of_lists([=](const Extents& shape, int rank) -> Lists {
    if (rank >= over) return std::nullopt;
    auto lists = whole_of(shape);
    Indices& list = lists[from_front(dim, shape)];
    list = chunk_of_list(list, over, rank);
    return lists;
  });
}

inline Meaning mean_mesh(std::vector<Extent> sizes, std::vector<Placement> placements, bool tp_first,
                         std::vector<Rank> ranks) {
  return of_lists([=](const Extents& shape, int rank) -> Lists {
    std::optional<Extent> position;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (to_int(ranks[i]) == rank) position = static_cast<Extent>(i);
    }
    if (!position) return std::nullopt;
    auto lists = whole_of(shape);
    const auto coordinate = [&](std::size_t m) {
      Extent below = 1;
      for (std::size_t i = m + 1; i < sizes.size(); ++i) below *= sizes[i];
      return *position / below % sizes[m];
    };
    for (std::size_t m = 0; m < sizes.size(); ++m) {
      if (const auto* shard = std::get_if<Shard>(&placements[m])) {
        Indices& list = lists[from_front(shard->dim, shape)];
        list = chunk_of_list(list, sizes[m], coordinate(m));
      }
      const auto* strided = std::get_if<StridedShard>(&placements[m]);
      if (strided != nullptr && !tp_first) {
        Indices& list = lists[from_front(strided->dim, shape)];
        list = strided_of_list(list, strided->split_factor, sizes[m], coordinate(m));
      }
    }
    for (std::size_t m = sizes.size(); tp_first && m-- > 0;) {
      if (const auto* strided = std::get_if<StridedShard>(&placements[m])) {
        Indices& list = lists[from_front(strided->dim, shape)];
        list = chunk_of_list(list, sizes[m], coordinate(m));
      }
    }
    return lists;
  });
}

/// ScaLAPACK: element e is at grid coordinate (e / b + q) mod P, local index (e / b / P) * b + e mod b.
inline Meaning mean_block_cyclic(std::vector<Extent> block, std::vector<Extent> grid, std::vector<Extent> source) {
  return of_lists([=](const Extents& shape, int rank) -> Lists {
    Extent ranks = 1;
    for (const Extent size : grid) ranks *= size;
    if (rank >= ranks) return std::nullopt;
    std::vector<Indices> lists(shape.size());
    Extent below = 1;
    for (std::size_t dim = shape.size(); dim-- > 0;) {
      const Extent coordinate = rank / below % grid[dim];
      below *= grid[dim];
      for (Extent e = 0; e < shape[dim]; ++e) {
        if ((e / block[dim] + source[dim]) % grid[dim] != coordinate) continue;
        const auto local = static_cast<std::size_t>(e / block[dim] / grid[dim] * block[dim] + e % block[dim]);
        lists[dim].resize(std::max(lists[dim].size(), local + 1), -1);
        lists[dim][local] = e;
      }
    }
    return lists;
  });
}

inline Meaning mean_boxes(PlacedBoxMap boxes) {
  return {[=](const Extents& shape, int rank) {
    Slots slots;
    const auto found = boxes.find(Rank{rank});
    if (found == boxes.end()) return slots;
    for (const PlacedBox& placed : found->second) {
      for_each_index(placed.box.size, row_major(shape.size()), [&](const Extents& inside) {
        Extents at = inside;
        ElementCount local = placed.local_offset;
        for (std::size_t dim = 0; dim < shape.size(); ++dim) {
          at[dim] = inside[dim] + placed.box.offset[dim];
          local += inside[dim] * placed.local_strides[dim];
        }
        slots.resize(std::max(slots.size(), static_cast<std::size_t>(local) + 1), -1);
        slots[static_cast<std::size_t>(local)] = global_index(shape, at);
      });
    }
    return slots;
  }};
}

inline Meaning mean_on_ranks(Meaning inner, std::vector<Rank> ranks) {
  const auto own_rank = [=](int rank) -> std::optional<int> {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (to_int(ranks[i]) == rank) return static_cast<int>(i);
    }
    return std::nullopt;
  };
  Meaning result;
  result.slots = [=](const Extents& shape, int rank) {
    const auto own = own_rank(rank);
    return own ? inner.slots(shape, *own) : Slots();
  };
  if (inner.lists) {
    result.lists = [=](const Extents& shape, int rank) -> Lists {
      const auto own = own_rank(rank);
      return own ? inner.lists(shape, *own) : std::nullopt;
    };
  }
  return result;
}

/// The list, split where its indices do not count up by one.
inline std::vector<Indices> runs_of(const Indices& list) {
  std::vector<Indices> runs;
  for (const Extent index : list) {
    if (runs.empty() || runs.back().back() + 1 != index) runs.emplace_back();
    runs.back().push_back(index);
  }
  return runs;
}

/// The products of one run of each list, one after the other.
inline Slots boxes_of_lists(const Extents& shape, const Lists& lists) {
  Slots slots;
  if (!lists) return slots;
  std::vector<std::vector<Indices>> runs;
  for (const Indices& list : *lists) runs.push_back(runs_of(list));
  Extents counts = shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) counts[dim] = static_cast<Extent>(runs[dim].size());
  for_each_index(counts, row_major(shape.size()), [&](const Extents& which) {
    std::vector<Indices> box;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) box.push_back(runs[dim][static_cast<std::size_t>(which[dim])]);
    const Slots one = product_of_lists(shape, box, row_major(shape.size()));
    slots.insert(slots.end(), one.begin(), one.end());
  });
  return slots;
}

/// Requires: inner.lists, or boxes of `inner` that do not interleave in its buffer.
inline Meaning mean_packed(Meaning inner) {
  if (inner.lists) {
    return {[=](const Extents& shape, int rank) { return boxes_of_lists(shape, inner.lists(shape, rank)); }};
  }
  return {[=](const Extents& shape, int rank) {
    Slots slots = inner.slots(shape, rank);
    std::erase(slots, -1);
    return slots;
  }};
}

inline Extents sizes_of(const std::vector<Indices>& lists) {
  Extents sizes = Extents::filled(lists.size(), 0);
  for (std::size_t dim = 0; dim < lists.size(); ++dim) sizes[dim] = static_cast<Extent>(lists[dim].size());
  return sizes;
}

/// Requires: outer.lists.
inline Meaning mean_within(Meaning outer, int outer_ranks, Meaning inner) {
  Meaning result;
  result.slots = [=](const Extents& shape, int rank) {
    const Lists lists = outer.lists(shape, rank % outer_ranks);
    if (!lists) return Slots();
    const Slots array = product_of_lists(shape, lists, row_major(shape.size()));
    Slots slots = inner.slots(sizes_of(*lists), rank / outer_ranks);
    for (ElementCount& slot : slots) {
      if (slot >= 0) slot = array[static_cast<std::size_t>(slot)];
    }
    return slots;
  };
  if (inner.lists) {
    result.lists = [=](const Extents& shape, int rank) -> Lists {
      const Lists lists = outer.lists(shape, rank % outer_ranks);
      if (!lists) return std::nullopt;
      Lists kept = inner.lists(sizes_of(*lists), rank / outer_ranks);
      for (std::size_t dim = 0; kept && dim < shape.size(); ++dim) {
        for (Extent& index : (*kept)[dim]) index = (*lists)[dim][static_cast<std::size_t>(index)];
      }
      return kept;
    };
  }
  return result;
}

struct FlatMeaning {
  Extents shape;
  std::optional<Meaning> outer{};
  std::vector<int> order{};
};

/// FSDP1: builds the whole flat parameter of the rank's outer rank and splits it.
inline Meaning mean_flat(std::vector<FlatMeaning> members, std::size_t which, int world, Extent align,
                         int outer_ranks) {
  return {[=](const Extents&, int rank) {
    if (rank / outer_ranks >= world) return Slots();
    std::vector<std::pair<std::size_t, ElementCount>> flat;  // member and global index; padding is (members.size(), -1)
    const auto pad_to = [&](Extent unit) {
      while (static_cast<Extent>(flat.size()) % unit != 0) flat.emplace_back(members.size(), -1);
    };
    for (std::size_t i = 0; i < members.size(); ++i) {
      const FlatMeaning& member = members[i];
      if (align > 0) pad_to(align);
      const Lists lists =
          member.outer ? member.outer->lists(member.shape, rank % outer_ranks) : Lists(whole_of(member.shape));
      const auto order = member.order.empty() ? row_major(member.shape.size()) : member.order;
      for (const ElementCount element : product_of_lists(member.shape, lists, order)) flat.emplace_back(i, element);
    }
    pad_to(world);  // an aligned parameter is padded, an unaligned one is split
    const std::size_t part = flat.size() / static_cast<std::size_t>(world);
    Slots slots;
    for (std::size_t i = 0; i < part; ++i) {
      const auto& [member, element] = flat[part * static_cast<std::size_t>(rank / outer_ranks) + i];
      slots.push_back(member == which ? element : -1);
    }
    return slots;
  }};
}

}  // namespace shardwire::test
