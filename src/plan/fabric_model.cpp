// SPDX-License-Identifier: Apache-2.0
#include "plan/fabric_model.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <tuple>

#include "plan/fluid.hpp"

namespace shardwire {
namespace {

// Maximum work of an approximate simulation: steps times flows.
constexpr double work_limit = 1e8;
constexpr double fewest_steps = 100;
constexpr double max_steps = 2000;

struct Classified {
  FluidFlow flow;
  ByteCount bytes = 0;
};

class Cluster {
 public:
  Cluster(const ClusterModel& fabric, std::int32_t ranks_per_host, std::span<const Flow> flows,
          std::span<const std::int32_t> process_of_target)
      : fabric_(fabric), ranks_per_host_(ranks_per_host) {
    std::int32_t last_process = -1;
    const auto process_of = [&](Rank target) {
      const auto t = static_cast<std::size_t>(to_int(target));
      return process_of_target.empty() ? to_int(target) : process_of_target[t];
    };
    for (const Flow& flow : flows) {
      last_process = std::max({last_process, to_int(flow.source), process_of(flow.target)});
    }
    out_.hosts = std::max(fabric.hosts, (last_process + ranks_per_host) / ranks_per_host);
    for (const Flow& flow : flows) {
      if (flow.bytes > 0) add(to_int(flow.source), process_of(flow.target), flow.bytes);
    }
  }

  RestorePrediction run(std::size_t exact_flows) {
    merge_equal();
    for (std::size_t i = 0; i < out_.links.size(); ++i) {
      const FabricLink& link = out_.links[i];
      const double busy = static_cast<double>(link.bytes) / link.bytes_per_second;
      out_.bound_seconds = std::max(out_.bound_seconds, latency_[i] + busy);
    }
    if (flows_.size() > exact_flows) {
      const double steps = work_limit / static_cast<double>(flows_.size());
      out_.resolution_seconds = out_.bound_seconds / std::clamp(steps, fewest_steps, max_steps);
    }
    std::vector<double> speeds;
    for (const FabricLink& link : out_.links) speeds.push_back(link.bytes_per_second);
    std::vector<FluidFlow> flows;
    flows.reserve(flows_.size());
    for (const Classified& one : flows_) flows.push_back(one.flow);
    flows_ = {};
    const FluidResult result = drain(speeds, std::move(flows), out_.resolution_seconds);
    out_.seconds = std::max(result.seconds, out_.bound_seconds);  // equal except for rounding, which may put it below
    out_.steps = result.steps;
    finish();
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::int32_t host_of(std::int32_t process) const { return process / ranks_per_host_; }
  [[nodiscard]] std::int32_t nic_of(std::int32_t process) const {
    return process % ranks_per_host_ % static_cast<std::int32_t>(fabric_.nics.size());
  }

  void add(std::int32_t source, std::int32_t target, ByteCount bytes) {
    const std::int32_t from = host_of(source);
    const std::int32_t to = host_of(target);
    host_flows_[{from, to}] += bytes;
    Classified one;
    one.bytes = bytes;
    one.flow.bytes = static_cast<double>(bytes);
    double latency = fabric_.network_latency_seconds;
    std::size_t used = 0;
    const auto cross = [&](LinkKind kind, std::int32_t owner, std::int32_t index, double speed) {
      one.flow.links[used++] = link(kind, owner, index, speed, latency, bytes);
    };
    if (source == target) {
      latency = fabric_.copy.latency_seconds;
      cross(LinkKind::copy, source, 0, fabric_.copy.bytes_per_second);
      out_.copied += bytes;
    } else if (from == to) {
      latency = fabric_.host.latency_seconds;
      cross(LinkKind::host_out, source, 0, fabric_.host.bytes_per_second);
      cross(LinkKind::host_in, target, 0, fabric_.host.bytes_per_second);
      if (fabric_.host_total > 0) cross(LinkKind::host_total, from, 0, fabric_.host_total);
      out_.within_hosts += bytes;
    } else {
      const std::int32_t out = nic_of(source);
      const std::int32_t in = nic_of(target);
      cross(LinkKind::nic_out, from, out, fabric_.nics[static_cast<std::size_t>(out)]);
      cross(LinkKind::nic_in, to, in, fabric_.nics[static_cast<std::size_t>(in)]);
      if (fabric_.oversubscription > 1) cross(LinkKind::core, 0, 0, core_speed());
      out_.between_hosts += bytes;
    }
    one.flow.start = latency;
    flows_.push_back(one);
  }

  [[nodiscard]] double core_speed() const {
    double all = 0;
    for (const double nic : fabric_.nics) all += nic;
    return all * out_.hosts / fabric_.oversubscription;
  }

  std::uint32_t link(LinkKind kind, std::int32_t owner, std::int32_t index, double speed, double latency,
                     ByteCount bytes) {
    const auto [entry, fresh] =
        link_ids_.try_emplace({kind, owner, index}, static_cast<std::uint32_t>(out_.links.size()));
    if (fresh) {
      out_.links.push_back({kind, owner, index, speed, 0, 0});
      latency_.push_back(latency);
    }
    out_.links[entry->second].bytes += bytes;
    return entry->second;
  }

  // Merges indistinguishable flows, which arise from ranks that share network links.
  void merge_equal() {
    const auto key = [](const Classified& one) { return std::tie(one.flow.links, one.bytes); };
    std::sort(flows_.begin(), flows_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    std::size_t kept = 0;
    for (const Classified& one : flows_) {
      if (kept > 0 && key(flows_[kept - 1]) == key(one)) {
        ++flows_[kept - 1].flow.count;
      } else {
        flows_[kept++] = one;
      }
    }
    flows_.resize(kept);
  }

  void finish() {
    for (FabricLink& link : out_.links) {
      const double busy = static_cast<double>(link.bytes) / link.bytes_per_second;
      link.utilisation = out_.seconds > 0 ? busy / out_.seconds : 0;
    }
    std::sort(out_.links.begin(), out_.links.end(), [](const FabricLink& a, const FabricLink& b) {
      return std::tuple(-a.utilisation, a.kind, a.owner, a.index) <
             std::tuple(-b.utilisation, b.kind, b.owner, b.index);
    });
    for (const auto& [hosts, bytes] : host_flows_) out_.host_flows.push_back({hosts.first, hosts.second, bytes});
  }

  const ClusterModel& fabric_;
  std::int32_t ranks_per_host_;
  RestorePrediction out_;
  std::vector<double> latency_;  // by link: all flows of a link have the same
  std::map<std::tuple<LinkKind, std::int32_t, std::int32_t>, std::uint32_t> link_ids_;
  std::map<std::pair<std::int32_t, std::int32_t>, ByteCount> host_flows_;
  std::vector<Classified> flows_;
};

}  // namespace

std::string_view to_string(LinkKind kind) {
  switch (kind) {
    case LinkKind::copy: return "copy";
    case LinkKind::host_out: return "host out";
    case LinkKind::host_in: return "host in";
    case LinkKind::host_total: return "host total";
    case LinkKind::nic_out: return "network out";
    case LinkKind::nic_in: return "network in";
    case LinkKind::core: return "core";
  }
  return "";
}

RestorePrediction predict(const ClusterModel& fabric, std::int32_t ranks_per_host, std::span<const Flow> flows,
                          std::span<const std::int32_t> process_of_target, std::size_t exact_flows) {
  return Cluster(fabric, ranks_per_host, flows, process_of_target).run(exact_flows);
}

}  // namespace shardwire
