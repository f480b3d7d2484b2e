// SPDX-License-Identifier: Apache-2.0
#include "move/choice.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace shardwire::move {

namespace {

// Reading across gaps may at most double what travels, whatever the model says.
constexpr ByteCount max_hull_per_byte = 2;

struct Sizes {
  ByteCount bytes = 0;
  ByteCount runs = 0;
  ByteCount hull = 0;  // of the source's bytes

  void add(const Sizes& other) {
    bytes += other.bytes;
    runs += other.runs;
    hull += other.hull;
  }
};

Sizes sizes_of(const Transfer& transfer) {
  return {transfer.copy->bytes(), transfer.copy->runs(), hull_bytes(transfer.box, transfer.held, transfer.item_bytes)};
}

bool possible(Way way, Ways ways, const Sizes& sizes) {
  // Without gaps there is nothing to read over.
  const bool worth =
      way != Way::over_read || (sizes.hull > sizes.bytes && sizes.hull <= max_hull_per_byte * sizes.bytes);
  return ways.has(way) && worth;
}

// What was measured knows the devices; what is built in does not.
WayCost cost_of(Way way, const Offer& offer, const CostModel& costs) {
  WayCost cost = costs.at(offer.carrier(way), offer.memory, way);
  const double limit = offer.limits[static_cast<std::size_t>(way)];
  if (limit <= 0 || cost != CostModel().at(offer.carrier(way), offer.memory, way)) return cost;
  cost.bytes_per_second = std::min(cost.bytes_per_second, limit);
  return cost;
}

ByteCount bytes_on_the_way(Way way, const Sizes& sizes) {
  return way == Way::over_read ? sizes.hull : sizes.bytes;
}

double seconds_of(Way way, const Offer& offer, const CostModel& costs, const Sizes& sizes) {
  return cost_of(way, offer, costs).seconds(bytes_on_the_way(way, sizes), sizes.runs);
}

// Where it is forced, over_read gives way to read for what it may not do.
std::optional<Way> forced_way(Way forced, Ways ways, const Sizes& sizes) {
  if (ways.has(Way::local)) return Way::local;
  if (possible(forced, ways, sizes)) return forced;
  if (forced == Way::over_read && ways.has(Way::read)) return Way::read;
  return std::nullopt;
}

std::string why_impossible(Way forced, Ways ways) {
  std::string text = forced == Way::local    ? "it is in another process"
                     : forced == Way::mapped ? "the source's memory is not mapped here"
                                             : "the transport does not offer it there";
  for (std::size_t i = 0; i < way_count; ++i) {
    const Way way = static_cast<Way>(i);
    if (!ways.has(way)) continue;
    text += text.find("; possible: ") == std::string::npos ? "; possible: " : ", ";
    text += to_string(way);
  }
  return text;
}

Way cheapest(const CostModel& costs, const Offer& offer, const Sizes& sizes) {
  std::optional<Way> best;
  double least = 0;
  for (std::size_t i = 0; i < way_count; ++i) {
    const Way way = static_cast<Way>(i);
    if (!possible(way, offer.ways, sizes)) continue;
    const double seconds = seconds_of(way, offer, costs, sizes);
    if (best && seconds >= least) continue;
    best = way;
    least = seconds;
  }
  if (!best) throw Error(ErrorCode::internal, "no way is possible");
  return *best;
}

}  // namespace

std::size_t run_class(ByteCount run_bytes) {
  constexpr ByteCount first = 256;
  if (run_bytes < first) return 0;
  const auto doublings = static_cast<std::size_t>(std::bit_width(run_bytes / first) - 1);
  return std::min(doublings / 2 + 1, run_classes - 1);
}

Predictions choose_ways(std::span<Transfer> transfers, std::span<const Offer> offers, const CostModel& costs,
                        std::optional<Way> forced) {
  struct Group {
    const Offer* offer = nullptr;
    Sizes sizes;
    std::vector<std::size_t> members;
  };
  using Key = std::tuple<std::uint32_t, std::size_t, unsigned, MemoryKind, std::array<std::string_view, way_count>,
                         std::array<double, way_count>>;
  std::map<Key, Group> groups;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    const Offer& offer = offers[i];
    transfer.copy.emplace(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
    Group& group = groups[{transfer.peer, run_class(transfer.copy->run_bytes()), offer.ways.bits(), offer.memory,
                           offer.carriers, offer.limits}];
    group.offer = &offer;
    group.sizes.add(sizes_of(transfer));
    group.members.push_back(i);
  }
  Predictions predictions;
  for (const auto& [key, group] : groups) {
    const Offer& offer = *group.offer;
    const auto chosen = forced ? forced_way(*forced, offer.ways, group.sizes) : cheapest(costs, offer, group.sizes);
    if (!chosen) throw ImpossibleWay(*forced, group.members.front(), why_impossible(*forced, offer.ways));
    const Way way = *chosen;
    for (const std::size_t member : group.members) transfers[member].way = way;
    Prediction& sum = predictions.ways[static_cast<std::size_t>(way)];
    const double seconds = seconds_of(way, offer, costs, group.sizes);
    sum.bytes += group.sizes.bytes;
    sum.runs += group.sizes.runs;
    sum.seconds += seconds;
    const std::uint32_t peer = std::get<0>(key);
    if (predictions.unmapped_seconds.size() <= peer) predictions.unmapped_seconds.resize(peer + std::size_t{1});
    if (predictions.peers.size() <= peer) predictions.peers.resize(peer + std::size_t{1});
    Prediction& of_peer = predictions.peers[peer][static_cast<std::size_t>(way)];
    of_peer.seconds += seconds - (of_peer.bytes > 0 ? cost_of(way, offer, costs).latency_seconds : 0);
    of_peer.bytes += bytes_on_the_way(way, group.sizes);
    of_peer.runs += group.sizes.runs;
    if (!offer.ways.has(Way::mapped) && !offer.carrier(Way::mapped).empty()) {
      predictions.unmapped_seconds[peer] += seconds - seconds_of(Way::mapped, offer, costs, group.sizes);
    }
  }
  return predictions;
}

}  // namespace shardwire::move
