// SPDX-License-Identifier: Apache-2.0
#include "shardwire/costs.hpp"

#include <algorithm>
#include <array>

#include "move/traits.hpp"
#include "move/tuning.hpp"
#include "transport/transport.hpp"

namespace shardwire {

namespace {

constexpr std::array<std::string_view, reach_count> reach_names{"process", "host", "network"};
constexpr std::array<std::string_view, fallback_reason_count> reason_names{
    "none",          "by_design",       "other_host",     "not_in_arena", "not_connected", "left_out",
    "not_built",     "library_missing", "library_unfit",  "no_device",    "memlock",       "peer_without",
    "other_domain",  "other_namespace", "other_user",     "undumpable",   "ptrace_scope",  "seccomp",
    "not_permitted", "no_gpu_direct",   "no_peer_access", "failed"};

MethodCost cost_over(std::string_view name, Method method) {
  for (const transport::Transport& row : transport::registered()) {
    if (row.name != name) continue;
    const auto line = std::ranges::find(row.costs, method, &transport::BuiltInCost::method);
    if (line != row.costs.end()) return line->cost;
  }
  return move::traits_of(method).cost;
}

// A kernel launch and its completion; thousands of threads copy runs in parallel. The device determines the bandwidth
// (device_limits.hpp), so there is no limit here.
constexpr MethodCost copied_by_device{.latency_seconds = 20e-6, .run_seconds = 1e-9, .bytes_per_second = 1e12};

MethodCost built_in(std::string_view transport, MemoryKind memory, Method method) {
  MethodCost cost = cost_over(transport, method);
  if (memory != MemoryKind::cuda) return cost;
  if (method == Method::local || method == Method::mapped) return copied_by_device;
  // Through pinned slots, which a device fills or empties.
  if (method == Method::packed || method == Method::sieved_read)
    cost.latency_seconds += copied_by_device.latency_seconds;
  return cost;
}

// Encryption takes its time for each byte, whatever the network is. Built in: one layer of a model over tcp has moved at 0.48 of
// the speed without encryption (perf/baselines/encryption.jsonl), and so do long runs of zcopy by these costs.
constexpr std::string_view encrypted_tcp = "tcp_encrypted";
constexpr double encrypted_bytes_per_second = 5.5e9;

MethodCost with_encryption(MethodCost cost) {
  const double seconds_per_byte = 1 / cost.bytes_per_second + 1 / encrypted_bytes_per_second;
  cost.bytes_per_second = std::max(1.0, 1 / seconds_per_byte);  // as in files
  return cost;
}

std::tuple<std::string, MemoryKind, Method> key_of(std::string_view transport, MemoryKind memory, Method method) {
  return {std::string(method == Method::local ? "local" : transport),
          memory == MemoryKind::detect ? MemoryKind::host : memory, method};
}

}  // namespace

std::string_view to_string(Method method) {
  return move::traits_of(method).name;
}
std::string_view to_string(Reach reach) {
  return reach_names[static_cast<std::size_t>(reach)];
}
std::string_view to_string(FallbackReason reason) {
  return reason_names[static_cast<std::size_t>(reason)];
}
std::optional<Method> method_from(std::string_view name) {
  const auto* const found = std::ranges::find(move::method_table, name, &move::MethodTraits::name);
  return found == move::method_table.end() ? std::nullopt : std::optional(found->method);
}

MethodCost CostModel::at(std::string_view transport, MemoryKind memory, Method method) const {
  const auto found = costs_.find(key_of(transport, memory, method));
  if (found != costs_.end()) return found->second;
  const bool encrypted = transport == encrypted_tcp && move::carrier_of(method) == move::Carrier::messages;
  return encrypted ? with_encryption(at("tcp", memory, method)) : built_in(transport, memory, method);
}

void CostModel::set(std::string_view transport, MemoryKind memory, Method method, const MethodCost& cost) {
  costs_[key_of(transport, memory, method)] = cost;
}

bool CostModel::operator==(const CostModel& other) const {
  const auto same = [&](const auto& set) {
    return std::ranges::all_of(set, [&](const auto& one) {
      const auto& [transport, memory, method] = one.first;
      return at(transport, memory, method) == other.at(transport, memory, method);
    });
  };
  return same(costs_) && same(other.costs_) && tuning() == other.tuning();
}

const detail::Tuning& CostModel::tuning() const {
  static const detail::Tuning as_built_in;
  return tuning_ ? *tuning_ : as_built_in;
}

void CostModel::set_tuning(const detail::Tuning& tuning) {
  tuning_ = std::make_shared<const detail::Tuning>(tuning);
}

}  // namespace shardwire
