// SPDX-License-Identifier: Apache-2.0
#include "plan/source_choice.hpp"

#include <algorithm>

namespace shardwire {
namespace {

// A share is not split into parts smaller than this: a message more costs more than the balance gains.
constexpr ElementCount least_part = 1 << 12;

std::uint64_t mix(std::uint64_t value) {  // finaliser of splitmix64: neighbours end up far apart
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// Where on the list of sources a line starts, so that boxes of one class do not all begin with their first holder.
std::uint64_t turn_of(const Box& box) {
  std::uint64_t turn = 0;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    turn = mix(turn ^ static_cast<std::uint64_t>(box.offset[dim] + 1)) + static_cast<std::uint64_t>(box.size[dim]);
  }
  return mix(turn);
}

__extension__ using Wide = __int128;

// floor(a * b / c) without leaving 64 bits in between.
ElementCount scale(ElementCount a, ElementCount b, ElementCount c) {
  return static_cast<ElementCount>(static_cast<Wide>(a) * b / c);
}

}  // namespace

std::int32_t Surroundings::beside(Rank target) const {
  if (topology.beside.empty()) return to_int(target) < source_ranks ? to_int(target) : -1;
  return topology.beside[static_cast<std::size_t>(to_int(target))];
}

bool Surroundings::same_host(Rank source, Rank target) const {
  return topology.source_host[static_cast<std::size_t>(to_int(source))] ==
         topology.target_host[static_cast<std::size_t>(to_int(target))];
}

std::vector<Rank> ReplicaReaders::candidates_of(const std::vector<Rank>& holders, Rank target) const {
  if (!where_.hosts_known()) return holders;
  std::vector<Rank> near;
  std::copy_if(holders.begin(), holders.end(), std::back_inserter(near),
               [&](Rank rank) { return where_.same_host(rank, target); });
  return near.empty() ? holders : near;
}

const ReplicaReaders::Line& ReplicaReaders::line(const Box& held, const std::vector<Rank>& holders,
                                                 const std::vector<Rank>& candidates) {
  const auto [entry, fresh] = lines_.try_emplace({held, holders, candidates});
  Line& line = entry->second;
  if (!fresh) return line;
  found_.clear();
  wanted_.find(held, found_);
  for (const HeldBox& wanted : found_) {
    // Who holds the box itself reads nothing of it from others.
    const std::int32_t own = where_.beside(wanted.rank);
    if (own >= 0 && std::binary_search(holders.begin(), holders.end(), Rank{own})) continue;
    if (candidates_of(holders, wanted.rank) != candidates) continue;
    const Box clip = *intersect(held, wanted.placed.box);
    line.readers.push_back({clip.offset, wanted.rank, clip.volume()});
  }
  std::sort(line.readers.begin(), line.readers.end(), [](const Line::Reader& a, const Line::Reader& b) {
    return std::tie(a.offset, a.rank) < std::tie(b.offset, b.rank);
  });
  for (Line::Reader& reader : line.readers) {  // volumes become positions
    const ElementCount volume = reader.begin;
    reader.begin = line.total;
    line.total += volume;
  }
  return line;
}

const HeldBox* SourceChoice::holder(std::span<const HeldBox> holders, Rank rank) const {
  const auto found = std::lower_bound(holders.begin(), holders.end(), rank,
                                      [](const HeldBox& held, Rank wanted) { return held.rank < wanted; });
  return found != holders.end() && found->rank == rank ? &*found : nullptr;
}

void SourceChoice::choose(const Shares& shares, std::uint32_t number, std::vector<Part>& out) {
  const Share& share = shares.shares[number];
  const std::span<const HeldBox> holders = shares.holders_of(share);
  if (holders.size() == 1 && lost_.empty()) {
    out.push_back({share.box, holders.data(), number});
    return;
  }
  survivors_.clear();
  const std::int32_t own = where_.beside(target_);
  for (const HeldBox& held : holders) {
    if (std::binary_search(lost_.begin(), lost_.end(), held.rank)) continue;
    if (to_int(held.rank) == own) {
      out.push_back({share.box, &held, number});
      return;
    }
    survivors_.push_back(held.rank);
  }
  if (survivors_.empty()) return;
  if (survivors_.size() == 1) {
    out.push_back({share.box, holder(holders, survivors_.front()), number});
    return;
  }
  spread(shares, number, out);
}

void SourceChoice::spread(const Shares& shares, std::uint32_t number, std::vector<Part>& out) {
  const Share& share = shares.shares[number];
  const std::span<const HeldBox> holders = shares.holders_of(share);
  const std::vector<Rank> candidates = readers_.candidates_of(survivors_, target_);
  const auto count = static_cast<ElementCount>(candidates.size());
  const Box& unit = share.one_box ? holders.front().placed.box : share.box;
  const std::uint64_t turn = turn_of(unit) % candidates.size();
  const auto source_at = [&](ElementCount place) {
    return holder(holders, candidates[(static_cast<std::uint64_t>(place) + turn) % candidates.size()]);
  };

  const ReplicaReaders::Line* line = nullptr;
  const ReplicaReaders::Line::Reader* self = nullptr;
  if (share.one_box) {
    line = &readers_.line(unit, survivors_, candidates);
    const auto found = std::lower_bound(
        line->readers.begin(), line->readers.end(), std::tie(share.box.offset, target_),
        [](const auto& reader, const auto& wanted) { return std::tie(reader.offset, reader.rank) < wanted; });
    if (found != line->readers.end() && found->offset == share.box.offset && found->rank == target_) self = &*found;
  }
  if (self == nullptr) {
    // Replicas that cut the tensor differently: nothing better is known than to take turns.
    const auto place = mix(static_cast<std::uint64_t>(to_int(target_)) + 1) % candidates.size();
    out.push_back({share.box, source_at(static_cast<ElementCount>(place)), number});
    return;
  }

  // The share lies on the line from `begin` on; it is split, between rows of its first dim that has several, where a
  // source's part of the line ends.
  const ElementCount volume = share.box.volume();
  std::size_t dim = 0;
  while (dim + 1 < share.box.dims() && share.box.size[dim] == 1) ++dim;
  const Extent rows = share.box.dims() == 0 ? 1 : share.box.size[dim];
  const ElementCount row = volume / rows;
  Extent done = 0;
  const ElementCount begin = self->begin;
  const auto take_rows = [&](Extent past) {
    Box part = share.box;
    if (rows > 1) {
      part.offset[dim] += done;
      part.size[dim] = past - done;
    }
    const ElementCount middle = begin + row * done + row * (past - done) / 2;
    out.push_back({part, source_at(scale(middle, count, line->total)), number});
    done = past;
  };
  if (volume >= 2 * least_part) {
    for (ElementCount place = scale(begin, count, line->total) + 1; place < count; ++place) {
      const ElementCount border = scale(line->total, place, count) - begin;
      if (border >= volume) break;
      const Extent cut = (border + row / 2) / row;
      if ((cut - done) * row < least_part || (rows - cut) * row < least_part) continue;
      take_rows(cut);
    }
  }
  take_rows(rows);
}

}  // namespace shardwire
