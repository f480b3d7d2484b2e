// SPDX-License-Identifier: Apache-2.0
#include "plan/source_choice.hpp"

#include <algorithm>

namespace shardwire {
namespace {

// A share is not split into parts smaller than this: another message would cost more than the balance gains.
constexpr ElementCount min_part = 1 << 12;
// Maximum number of cached lines per class of tensors.
constexpr std::size_t max_lines = 1 << 16;

std::uint64_t mix(std::uint64_t value) {  // finaliser of splitmix64: scatters neighbouring values
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// The start of a line in the list of sources, so that boxes of one class do not all start with their first holder.
std::uint64_t turn_of(const Box& box) {
  std::uint64_t turn = 0;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    turn = mix(turn ^ static_cast<std::uint64_t>(box.offset[dim] + 1)) + static_cast<std::uint64_t>(box.size[dim]);
  }
  return mix(turn);
}

__extension__ using Wide = __int128;

// floor(a * b / c) without intermediate overflow of 64 bits.
ElementCount scale(ElementCount a, ElementCount b, ElementCount c) {
  return static_cast<ElementCount>(static_cast<Wide>(a) * b / c);
}

// Row-major index of an element of a box.
ElementCount position_in(const Box& box, const Extents& element) {
  ElementCount position = 0;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    position = position * box.size[dim] + element[dim] - box.lower(dim);
  }
  return position;
}

}  // namespace

std::int32_t Surroundings::colocated(Rank target) const {
  if (topology.colocated.empty()) return to_int(target) < source_ranks ? to_int(target) : -1;
  return topology.colocated[static_cast<std::size_t>(to_int(target))];
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

bool ReplicaReaders::Line::Run::takes(const Reader& next) const {
  const ElementCount positions = next.position - first.position;
  const std::int64_t ranks = std::int64_t{next.rank} - first.rank;
  return next.volume == first.volume && positions % count == 0 && positions / count == position_step &&
         ranks == rank_step * count;
}

ReplicaReaders::Line::Line(std::span<const Reader> readers) {
  for (const Reader& reader : readers) {
    const ElementCount begin = std::exchange(total_, total_ + reader.volume);
    if (!runs_.empty() && runs_.back().count == 1) {
      Run& last = runs_.back();
      last.position_step = reader.position - last.first.position;
      last.rank_step = std::int64_t{reader.rank} - last.first.rank;
    }
    if (!runs_.empty() && runs_.back().takes(reader)) {
      ++runs_.back().count;
    } else {
      runs_.push_back({reader, 0, 0, 1, begin});
    }
  }
}

std::optional<ElementCount> ReplicaReaders::Line::find(ElementCount position, Rank rank) const {
  const auto not_after = [&](const Run& run) { return run.first.place() <= std::pair(position, to_int(rank)); };
  const auto after = std::partition_point(runs_.begin(), runs_.end(), not_after);
  if (after == runs_.begin()) return std::nullopt;
  const Run& run = *std::prev(after);
  const ElementCount positions = position - run.first.position;
  const std::int64_t ranks = std::int64_t{to_int(rank)} - run.first.rank;
  std::int64_t i = 0;
  if (run.position_step != 0) {
    i = positions / run.position_step;
  } else if (run.rank_step != 0) {
    i = ranks / run.rank_step;
  }
  if (i >= run.count || positions != i * run.position_step || ranks != i * run.rank_step) return std::nullopt;
  return run.begin + i * run.first.volume;
}

const ReplicaReaders::Line& ReplicaReaders::line(const Box& held, const std::vector<Rank>& holders,
                                                 const std::vector<Rank>& candidates) {
  const auto known = lines_.find(std::tie(held, holders, candidates));
  if (known != lines_.end()) return known->second;
  if (lines_.size() >= max_lines) lines_.clear();
  return lines_.emplace(std::tuple(held, holders, candidates), make_line(held, holders, candidates)).first->second;
}

ReplicaReaders::Line ReplicaReaders::make_line(const Box& held, const std::vector<Rank>& holders,
                                               const std::vector<Rank>& candidates) {
  std::vector<Line::Reader> readers;
  wanted_.find(held, [&](const PlacedBox& wanted, Rank rank) {
    // A holder of the box itself reads nothing of it from others.
    const std::int32_t own = where_.colocated(rank);
    if (own >= 0 && std::binary_search(holders.begin(), holders.end(), Rank{own})) return true;
    if (where_.hosts_known() && candidates_of(holders, rank) != candidates) return true;
    const Box clip = *intersect(held, wanted.box);
    readers.push_back({position_in(held, clip.offset), to_int(rank), clip.volume()});
    return true;
  });
  std::sort(readers.begin(), readers.end(),
            [](const Line::Reader& a, const Line::Reader& b) { return a.place() < b.place(); });
  return Line(readers);
}

SourcedBox SourceChoice::part_of(const Box& box, std::span<const Holder> holders, Rank source, std::uint32_t share) {
  const auto holder = std::lower_bound(holders.begin(), holders.end(), source,
                                       [](const Holder& one, Rank wanted) { return one.rank < wanted; });
  return {box, source, holder->held, share};
}

void SourceChoice::choose(const Shares& shares, std::uint32_t number, std::vector<SourcedBox>& out) {
  const Share& share = shares.shares[number];
  const std::span<const Holder> holders = shares.holders_of(share);
  if (holders.size() == 1 && lost_.empty()) {
    out.push_back({share.box, holders[0].rank, holders[0].held, number});
    return;
  }
  survivors_.clear();
  const std::int32_t own = where_.colocated(target_);
  for (const Holder& holder : holders) {
    if (std::binary_search(lost_.begin(), lost_.end(), holder.rank)) continue;
    if (to_int(holder.rank) == own || replicas_ != Replicas::spread) {
      out.push_back({share.box, holder.rank, holder.held, number});
      return;
    }
    survivors_.push_back(holder.rank);
  }
  if (survivors_.empty()) return;
  if (survivors_.size() == 1) {
    out.push_back(part_of(share.box, holders, survivors_.front(), number));
    return;
  }
  spread(shares, number, out);
}

std::uint32_t SourceChoice::choose_all(const Shares& shares, std::vector<SourcedBox>& out) {
  std::uint32_t without = 0;
  for (std::uint32_t i = 0; i < shares.shares.size(); ++i) {
    const std::size_t before = out.size();
    choose(shares, i, out);
    if (out.size() == before) ++without;
  }
  return without;
}

void SourceChoice::spread(const Shares& shares, std::uint32_t number, std::vector<SourcedBox>& out) {
  const Share& share = shares.shares[number];
  const std::span<const Holder> holders = shares.holders_of(share);
  const std::vector<Rank> candidates = readers_.candidates_of(survivors_, target_);
  const auto count = static_cast<ElementCount>(candidates.size());
  const Box& unit = share.one_box ? shares.held[holders.front().held].box : share.box;
  const std::uint64_t turn = turn_of(unit) % candidates.size();
  const auto source_at = [&](ElementCount place) {
    return candidates[(static_cast<std::uint64_t>(place) + turn) % candidates.size()];
  };

  const ReplicaReaders::Line* line = nullptr;
  std::optional<ElementCount> own_begin;
  if (share.one_box) {
    line = &readers_.line(unit, survivors_, candidates);
    own_begin = line->find(position_in(unit, share.box.offset), target_);
  }
  if (!own_begin) {
    // Replicas with different splits of the tensor: the best known choice is to take turns.
    const auto place = mix(static_cast<std::uint64_t>(to_int(target_)) + 1) % candidates.size();
    out.push_back(part_of(share.box, holders, source_at(static_cast<ElementCount>(place)), number));
    return;
  }

  // The share covers the line from `begin` on; it is split, between rows of its first dim that has several, where a
  // source's part of the line ends.
  const ElementCount volume = share.box.volume();
  std::size_t dim = 0;
  while (dim + 1 < share.box.dims() && share.box.size[dim] == 1) ++dim;
  const Extent rows = share.box.dims() == 0 ? 1 : share.box.size[dim];
  const ElementCount row = volume / rows;
  Extent done = 0;
  const ElementCount begin = *own_begin;
  const auto take_rows = [&](Extent end) {
    Box part = share.box;
    if (rows > 1) {
      part.offset[dim] += done;
      part.size[dim] = end - done;
    }
    const ElementCount middle = begin + row * done + row * (end - done) / 2;
    out.push_back(part_of(part, holders, source_at(scale(middle, count, line->total())), number));
    done = end;
  };
  if (volume >= 2 * min_part) {
    for (ElementCount place = scale(begin, count, line->total()) + 1; place < count; ++place) {
      const ElementCount border = scale(line->total(), place, count) - begin;
      if (border >= volume) break;
      const Extent split_at = (border + row / 2) / row;
      if ((split_at - done) * row < min_part || (rows - split_at) * row < min_part) continue;
      take_rows(split_at);
    }
  }
  take_rows(rows);
}

}  // namespace shardwire
