// SPDX-License-Identifier: Apache-2.0
#include "plan/fluid.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <span>

namespace shardwire {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double rounding = 1e-9;  // relative: ends this close to each other coincide

class Fluid {
 public:
  Fluid(const std::vector<double>& speeds, std::vector<FluidFlow> flows)
      : speeds_(speeds), flows_(std::move(flows)), left_(speeds.size()), running_(speeds.size()) {
    std::sort(flows_.begin(), flows_.end(), [](const auto& a, const auto& b) { return a.start < b.start; });
  }

  FluidResult run(double resolution) {
    FluidResult result;
    double now = 0;
    while (begun_ < flows_.size() || !active_.empty()) {
      if (active_.empty()) now = std::max(now, flows_[begun_].start);
      begin(now);
      share();
      const double first_end = soonest();
      const double next_start = begun_ < flows_.size() ? flows_[begun_].start - now : never;
      const double step = std::min(std::max(first_end, resolution), next_start);
      const double latest = advance(step);
      now += active_.empty() ? latest : step;  // the last flows end at their own time
      ++result.steps;
    }
    result.seconds = now;
    return result;
  }

 private:
  struct Active {
    std::array<std::uint32_t, 3> links;
    std::uint32_t count;
    double bytes;
    double rate;
  };

  void begin(double now) {
    while (begun_ < flows_.size() && flows_[begun_].start <= now * (1 + rounding)) {
      const FluidFlow& flow = flows_[begun_++];
      active_.push_back({flow.links, flow.count, flow.bytes, 0});
    }
  }

  // Lists the active flows of each link.
  void index() {
    first_.assign(speeds_.size() + 1, 0);
    for_each_use([&](std::uint32_t link, std::uint32_t) { ++first_[link + 1]; });
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    uses_.resize(first_.back());
    std::vector<std::uint32_t> next(first_.begin(), first_.end() - 1);
    for_each_use([&](std::uint32_t link, std::uint32_t flow) { uses_[next[link]++] = flow; });
  }
  template <typename Visit>
  void for_each_use(Visit visit) const {
    for (std::uint32_t flow = 0; flow < active_.size(); ++flow) {
      for (const std::uint32_t link : active_[flow].links) {
        if (link != no_link) visit(link, flow);
      }
    }
  }

  // Max-min fair rates: the link with the smallest share per flow fixes the rates of its flows, and the other links
  // share the rest. Shares only grow meanwhile, so a stale queue entry is put back with its current share.
  void share() {
    index();
    std::fill(running_.begin(), running_.end(), 0.0);
    std::copy(speeds_.begin(), speeds_.end(), left_.begin());
    for (Active& flow : active_) {
      flow.rate = 0;
      for (const std::uint32_t link : flow.links) {
        if (link != no_link) running_[link] += flow.count;
      }
    }
    std::vector<Entry> entries;
    for (std::uint32_t link = 0; link < speeds_.size(); ++link) {
      if (running_[link] > 0) entries.emplace_back(left_[link] / running_[link], link);
    }
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue(std::greater<>(), std::move(entries));
    while (!queue.empty()) {
      const auto [known, link] = queue.top();
      queue.pop();
      if (running_[link] < 0.5) continue;
      const double rate = std::max(known, left_[link] / running_[link]);
      if (rate > known * (1 + rounding)) {
        queue.emplace(rate, link);
        continue;
      }
      for (std::uint32_t use = first_[link]; use < first_[link + 1]; ++use) fix(active_[uses_[use]], rate);
    }
  }

  void fix(Active& flow, double rate) {
    if (flow.rate > 0) return;
    flow.rate = rate;
    for (const std::uint32_t link : flow.links) {
      if (link == no_link) continue;
      left_[link] = std::max(0.0, left_[link] - rate * flow.count);
      running_[link] -= flow.count;
    }
  }

  [[nodiscard]] double soonest() const {
    double soonest = never;
    for (const Active& flow : active_) soonest = std::min(soonest, flow.bytes / flow.rate);
    return soonest;
  }

  // Returns the time from now until the last of the ended flows ended.
  double advance(double step) {
    double latest = 0;
    std::erase_if(active_, [&](Active& flow) {
      const double end = flow.bytes / flow.rate;
      if (end <= step * (1 + rounding)) {
        latest = std::max(latest, end);
        return true;
      }
      flow.bytes -= flow.rate * step;
      return false;
    });
    return latest;
  }

  using Entry = std::pair<double, std::uint32_t>;

  const std::vector<double>& speeds_;
  std::vector<FluidFlow> flows_;  // by start
  std::size_t begun_ = 0;
  std::vector<Active> active_;
  std::vector<double> left_;     // unassigned speed of each link
  std::vector<double> running_;  // flows of each link without a rate
  std::vector<std::uint32_t> first_;
  std::vector<std::uint32_t> uses_;
};

}  // namespace

FluidResult drain(const std::vector<double>& speeds, std::vector<FluidFlow> flows, double resolution) {
  return Fluid(speeds, std::move(flows)).run(resolution);
}

}  // namespace shardwire
