// SPDX-License-Identifier: Apache-2.0
#include "transport/rdma.hpp"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <set>
#include <utility>

#include "support/capabilities.hpp"

namespace shardwire::transport {
namespace {

std::set<std::string> entries(const std::filesystem::path& folder) {
  std::set<std::string> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) out.insert(entry.path().filename());
  return out;
}

/// A UCX selection list: "a,b", or "^a,b" for all but these. An empty list selects everything.
class Selection {
 public:
  explicit Selection(std::string_view list) : all_but_(list.starts_with('^')) {
    if (all_but_) list.remove_prefix(1);
    while (!list.empty()) {
      const std::size_t comma = std::min(list.find(','), list.size());
      if (comma > 0) words_.push_back(list.substr(0, comma));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  }
  /// `names`: names of the thing in addition to "all".
  [[nodiscard]] bool leaves(std::initializer_list<std::string_view> names) const {
    if (words_.empty()) return true;
    const bool named = std::ranges::any_of(
        words_, [&](std::string_view word) { return word == "all" || std::ranges::find(names, word) != names.end(); });
    return named != all_but_;
  }

 private:
  bool all_but_;
  std::vector<std::string_view> words_;
};

}  // namespace

std::vector<RdmaPort> rdma_ports(const std::string& folder) {
  std::vector<RdmaPort> ports;
  for (const std::string& device : entries(folder)) {
    const std::filesystem::path all = std::filesystem::path(folder) / device / "ports";
    for (const std::string& number : entries(all)) {
      RdmaPort port{.device = device, .number = number, .state = {}, .folder = all / number};
      std::ifstream file(all / number / "state");  // "4: ACTIVE"
      std::string code;
      file >> code >> port.state;
      ports.push_back(std::move(port));
    }
  }
  return ports;
}

Viability probe_rdma(const std::string& folder) {
  std::set<std::string> active;
  std::set<std::string> others;
  for (const RdmaPort& port : rdma_ports(folder)) {
    if (port.active()) {
      active.insert(port.device);
    } else {
      others.insert(fmt::format("port {} of {} is {}", port.number, port.device,
                                port.state.empty() ? "in no known state" : port.state));
    }
  }
  if (!active.empty()) return {true, fmt::format("{}", fmt::join(active, ", "))};
  if (others.empty()) {
    return {false, fmt::format("no RDMA device (nothing under {})", folder), FallbackReason::no_device};
  }
  return {false, fmt::format("no RDMA device with an active port ({})", fmt::join(others, ", ")),
          FallbackReason::no_device};
}

Viability probe_libfabric_devices(const std::string& infiniband, const std::string& cxi) {
  std::set<std::string> found = entries(cxi);
  for (const std::string& device : entries(infiniband)) {
    std::error_code none;
    const auto driver =
        std::filesystem::read_symlink(std::filesystem::path(infiniband) / device / "device/driver", none);
    if (driver.filename() == "efa") found.insert(device);
  }
  if (!found.empty()) return {true, fmt::format("{}", fmt::join(found, ", "))};
  return {false, fmt::format("no EFA or Slingshot device (under {} and {})", infiniband, cxi),
          FallbackReason::no_device};
}

std::vector<std::string> active_ports(const std::string& folder) {
  std::vector<std::string> names;
  for (const RdmaPort& port : rdma_ports(folder)) {
    if (port.active()) names.push_back(port.name());
  }
  return names;
}

std::optional<std::uint64_t> pinnable_bytes() {
  rlimit limit{};
  const bool unlimited = ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY;
  if (unlimited || support::has_capability(CAP_IPC_LOCK)) return std::nullopt;
  return limit.rlim_cur;
}

std::string how_to_pin_more(unsigned user) {
  return "raise the limit (ulimit -l unlimited; docker: --ulimit memlock=-1)" +
         (user == 0 ? ", or add the capability IPC_LOCK"
                    : fmt::format("; the capability IPC_LOCK of a container has no effect for user {}", user));
}

std::string too_little_to_pin(const std::optional<std::uint64_t>& pinnable) {
  if (!pinnable || *pinnable >= min_pinnable_bytes) return {};
  return fmt::format("this process may pin {} bytes for RDMA, and less than {} are of no use: {}", *pinnable,
                     min_pinnable_bytes, how_to_pin_more(::geteuid()));
}

// Names are case-insensitive and may have a layered provider in front, separated by ";".
bool leaves_hardware_providers(std::string_view chosen) {
  std::string names(chosen);
  std::ranges::transform(names, names.begin(),
                         [](unsigned char one) { return one == ';' ? ',' : static_cast<char>(std::tolower(one)); });
  const Selection selection(names);
  constexpr std::array<std::string_view, 3> reading{"verbs", "efa", "cxi"};
  return std::ranges::any_of(reading, [&](std::string_view name) { return selection.leaves({name}); });
}

std::string reading_transports(std::string_view chosen) {
  const Selection selection(chosen);
  std::vector<std::string_view> left;
  if (selection.leaves({"rc_v", "rc_verbs", "rc", "ib"})) left.push_back("rc_v");
  if (selection.leaves({"rc_x", "rc_mlx5", "rc", "ib"})) left.push_back("rc_x");
  if (selection.leaves({"dc_x", "dc_mlx5", "dc", "ib"})) left.push_back("dc_x");
  return fmt::format("{}", fmt::join(left, ","));
}

bool leaves_cuda(std::string_view chosen) {
  return Selection(chosen).leaves({"cuda_copy", "cuda"});
}

std::vector<std::string> chosen_ports(std::vector<std::string> ports, std::string_view chosen) {
  const Selection selection(chosen);
  std::erase_if(ports, [&](const std::string& port) {
    return !selection.leaves({port, std::string_view(port).substr(0, port.rfind(':'))});
  });
  return ports;
}

}  // namespace shardwire::transport
