// SPDX-License-Identifier: Apache-2.0
#include "plan/assignment.hpp"

#include <algorithm>
#include <functional>
#include <queue>
#include <span>

namespace shardwire {
namespace {

// Prices never exceed the largest weight, so sums of two of them fit 64 bits. Invariants: every edge's slack, target
// price + source price - weight, is never negative and is 0 where the edge is taken; a free source has price 0. A
// target without a source may have a price only until it has been placed.
class Matcher {
 public:
  explicit Matcher(const BipartiteGraph& graph)
      : graph_(graph),
        target_of_(graph.sources, unassigned),
        distance_(graph.sources, far),
        reached_from_(graph.sources, unassigned) {
    out_.source_of.assign(graph.targets(), unassigned);
    out_.target_price.assign(graph.targets(), 0);
    out_.source_price.assign(graph.sources, 0);
  }

  Assignment run() {
    for (const std::uint32_t target : bid()) place(target);
    return std::move(out_);
  }

 private:
  static constexpr std::uint64_t far = ~std::uint64_t{0};

  [[nodiscard]] std::span<const Edge> edges_to(std::uint32_t target) const {
    return std::span(graph_.edges).subspan(graph_.first[target], graph_.first[target + 1] - graph_.first[target]);
  }
  [[nodiscard]] std::uint64_t gain(const Edge& edge) const {
    const std::uint64_t price = out_.source_price[edge.source];
    return edge.weight > price ? edge.weight - price : 0;
  }
  void take(std::uint32_t target, std::uint32_t source) {
    out_.source_of[target] = source;
    target_of_[source] = target;
  }

  // Each target takes the source with the greatest gain and raises its price to the point of indifference, which may
  // displace another target. This settles most targets cheaply; paths do the rest. Bounded, since rivals may outbid
  // each other in tiny steps.
  std::vector<std::uint32_t> bid() {
    constexpr std::size_t rounds_per_target = 8;
    std::vector<std::uint32_t> waiting;
    std::vector<std::uint32_t> left;
    for (std::uint32_t target = graph_.targets(); target-- > 0;) waiting.push_back(target);
    std::size_t rounds = rounds_per_target * waiting.size();
    while (!waiting.empty()) {
      const std::uint32_t target = waiting.back();
      waiting.pop_back();
      if (rounds == 0) {
        left.push_back(target);
        continue;
      }
      --rounds;
      std::uint64_t best = 0;
      std::uint64_t second = 0;
      std::uint32_t chosen = unassigned;
      for (const Edge& edge : edges_to(target)) {
        const std::uint64_t value = gain(edge);
        const bool frees =
            value == best && value > 0 && target_of_[chosen] != unassigned && target_of_[edge.source] == unassigned;
        if (value > best || frees) {
          second = best;
          best = value;
          chosen = edge.source;
        } else {
          second = std::max(second, value);
        }
      }
      out_.target_price[target] = second;
      if (chosen == unassigned) continue;  // every source costs more than it is worth here, and prices only rise
      const std::uint32_t rival = target_of_[chosen];
      if (rival != unassigned && best == second) {  // no price would separate them
        out_.target_price[target] = best;
        left.push_back(target);
        continue;
      }
      out_.source_price[chosen] += best - second;
      take(target, chosen);
      if (rival == unassigned) continue;
      out_.source_of[rival] = unassigned;
      waiting.push_back(rival);
    }
    std::sort(left.begin(), left.end());
    return left;
  }

  // Finds the cheapest chain of changes in which `start` takes a source. The chain ends at a free source, or at a
  // target that remains without one.
  void place(std::uint32_t start) {
    std::uint64_t& own = out_.target_price[start];
    own = 0;
    for (const Edge& edge : edges_to(start)) own = std::max(own, gain(edge));
    limit_ = own;
    free_source_ = unassigned;
    left_out_ = start;
    scan(start, 0);
    while (!queue_.empty()) {
      const auto [distance, source] = queue_.top();
      if (distance >= limit_) break;
      queue_.pop();
      if (distance > distance_[source]) continue;
      done_.push_back(source);
      scan(target_of_[source], distance);
    }
    own -= limit_;
    for (const std::uint32_t source : done_) {
      const std::uint64_t change = limit_ - distance_[source];
      out_.source_price[source] += change;
      out_.target_price[target_of_[source]] -= change;
    }
    shift(start);
    for (const std::uint32_t source : touched_) distance_[source] = far;
    touched_.clear();
    done_.clear();
    queue_ = {};
  }

  void scan(std::uint32_t target, std::uint64_t distance) {
    const std::uint64_t price = out_.target_price[target];
    if (price < limit_ - distance) {
      limit_ = distance + price;
      left_out_ = target;
      free_source_ = unassigned;
    }
    for (const Edge& edge : edges_to(target)) {
      const std::uint64_t slack = price + out_.source_price[edge.source] - edge.weight;
      if (slack >= limit_ - distance) continue;
      const std::uint64_t reached = distance + slack;
      if (reached >= distance_[edge.source]) continue;
      if (distance_[edge.source] == far) touched_.push_back(edge.source);
      distance_[edge.source] = reached;
      reached_from_[edge.source] = target;
      if (target_of_[edge.source] == unassigned) {
        limit_ = reached;
        free_source_ = edge.source;
      } else {
        queue_.emplace(reached, edge.source);
      }
    }
  }

  // Moves every target on the chain to the source through which the next one was reached.
  void shift(std::uint32_t start) {
    std::uint32_t source = free_source_;
    if (source == unassigned) {
      source = out_.source_of[left_out_];
      out_.source_of[left_out_] = unassigned;
      if (left_out_ == start) return;
    }
    for (;;) {
      const std::uint32_t target = reached_from_[source];
      const std::uint32_t before = out_.source_of[target];
      take(target, source);
      if (target == start) return;
      source = before;
    }
  }

  const BipartiteGraph& graph_;
  Assignment out_;
  std::vector<std::uint32_t> target_of_;  // by source
  // of one search
  std::vector<std::uint64_t> distance_;
  std::vector<std::uint32_t> reached_from_;
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint32_t> done_;
  std::uint64_t limit_ = 0;  // length of the shortest known chain
  std::uint32_t free_source_ = unassigned;
  std::uint32_t left_out_ = unassigned;
  using Entry = std::pair<std::uint64_t, std::uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

Assignment assign(const BipartiteGraph& graph) {
  return Matcher(graph).run();
}

}  // namespace shardwire
