// SPDX-License-Identifier: Apache-2.0
#include "move/choice.hpp"

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

namespace shardwire::move {

namespace {

// Reading across gaps may at most double the bytes on the wire, whatever the model predicts.
constexpr ByteCount max_hull_per_byte = 2;

struct Sizes {
  ByteCount bytes = 0;
  ByteCount runs = 0;
  ByteCount hull = 0;  // in bytes at the source

  void add(const Sizes& other) {
    bytes += other.bytes;
    runs += other.runs;
    hull += other.hull;
  }
};

Sizes sizes_of(const Transfer& transfer) {
  return {transfer.copy->bytes(), transfer.copy->runs(), hull_bytes(transfer.box, transfer.held, transfer.item_bytes)};
}

bool possible(Method method, Methods methods, const Sizes& sizes) {
  // Without gaps, reading across them has no benefit.
  const bool worth =
      method != Method::sieved_read || (sizes.hull > sizes.bytes && sizes.hull <= max_hull_per_byte * sizes.bytes);
  return methods.has(method) && worth;
}

// Measured costs include the devices; built-in ones do not.
MethodCost cost_of(Method method, const Offer& offer, const CostModel& costs) {
  MethodCost cost = costs.at(offer.carrier(method), offer.memory, method);
  const double limit = offer.limits[static_cast<std::size_t>(method)];
  if (limit <= 0 || cost != CostModel().at(offer.carrier(method), offer.memory, method)) return cost;
  cost.bytes_per_second = std::min(cost.bytes_per_second, limit);
  return cost;
}

ByteCount bytes_on_the_way(Method method, const Sizes& sizes) {
  return method == Method::sieved_read ? sizes.hull : sizes.bytes;
}

double seconds_of(Method method, const Offer& offer, const CostModel& costs, const Sizes& sizes) {
  return cost_of(method, offer, costs).seconds(bytes_on_the_way(method, sizes), sizes.runs);
}

// A forced sieved_read falls back to read for transfers that it cannot move.
std::optional<Method> forced_method(Method forced, Methods methods, const Sizes& sizes) {
  if (methods.has(Method::local)) return Method::local;
  if (possible(forced, methods, sizes)) return forced;
  if (forced == Method::sieved_read && methods.has(Method::read)) return Method::read;
  return std::nullopt;
}

std::string why_impossible(Method forced, Methods methods) {
  std::string text = forced == Method::local    ? "it is in another process"
                     : forced == Method::mapped ? "the source's memory is not mapped here"
                                                : "the transport does not offer it there";
  for (std::size_t i = 0; i < method_count; ++i) {
    const Method method = static_cast<Method>(i);
    if (!methods.has(method)) continue;
    text += text.find("; possible: ") == std::string::npos ? "; possible: " : ", ";
    text += to_string(method);
  }
  return text;
}

Method cheapest(const CostModel& costs, const Offer& offer, const Sizes& sizes) {
  std::optional<Method> best;
  double least = 0;
  for (std::size_t i = 0; i < method_count; ++i) {
    const Method method = static_cast<Method>(i);
    if (!possible(method, offer.methods, sizes)) continue;
    const double seconds = seconds_of(method, offer, costs, sizes);
    if (best && seconds >= least) continue;
    best = method;
    least = seconds;
  }
  if (!best) throw Error(ErrorCode::internal, "no method is possible");
  return *best;
}

}  // namespace

std::size_t run_class(ByteCount run_bytes) {
  constexpr ByteCount first = 256;
  if (run_bytes < first) return 0;
  const auto doublings = static_cast<std::size_t>(std::bit_width(run_bytes / first) - 1);
  return std::min(doublings / 2 + 1, run_classes - 1);
}

Predictions choose_methods(std::span<Transfer> transfers, std::span<const Offer> offers, const CostModel& costs,
                           std::optional<Method> forced) {
  struct Group {
    const Offer* offer = nullptr;
    Sizes sizes;
    std::vector<std::size_t> members;
  };
  using Key = std::tuple<std::uint32_t, std::size_t, unsigned, MemoryKind, std::array<std::string_view, method_count>,
                         std::array<double, method_count>>;
  std::map<Key, Group> groups;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    Transfer& transfer = transfers[i];
    const Offer& offer = offers[i];
    transfer.copy.emplace(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
    Group& group = groups[{transfer.peer, run_class(transfer.copy->run_bytes()), offer.methods.bits(), offer.memory,
                           offer.carriers, offer.limits}];
    group.offer = &offer;
    group.sizes.add(sizes_of(transfer));
    group.members.push_back(i);
  }
  Predictions predictions;
  for (const auto& [key, group] : groups) {
    const Offer& offer = *group.offer;
    const auto chosen =
        forced ? forced_method(*forced, offer.methods, group.sizes) : cheapest(costs, offer, group.sizes);
    if (!chosen) throw ImpossibleMethod(*forced, group.members.front(), why_impossible(*forced, offer.methods));
    const Method method = *chosen;
    for (const std::size_t member : group.members) transfers[member].method = method;
    Prediction& sum = predictions.methods[static_cast<std::size_t>(method)];
    const double seconds = seconds_of(method, offer, costs, group.sizes);
    sum.bytes += group.sizes.bytes;
    sum.runs += group.sizes.runs;
    sum.seconds += seconds;
    const std::uint32_t peer = std::get<0>(key);
    if (predictions.unmapped_seconds.size() <= peer) predictions.unmapped_seconds.resize(peer + std::size_t{1});
    if (predictions.peers.size() <= peer) predictions.peers.resize(peer + std::size_t{1});
    Prediction& of_peer = predictions.peers[peer][static_cast<std::size_t>(method)];
    of_peer.seconds += seconds - (of_peer.bytes > 0 ? cost_of(method, offer, costs).latency_seconds : 0);
    of_peer.bytes += bytes_on_the_way(method, group.sizes);
    of_peer.runs += group.sizes.runs;
    if (!offer.methods.has(Method::mapped) && !offer.carrier(Method::mapped).empty()) {
      predictions.unmapped_seconds[peer] += seconds - seconds_of(Method::mapped, offer, costs, group.sizes);
    }
  }
  return predictions;
}

}  // namespace shardwire::move
