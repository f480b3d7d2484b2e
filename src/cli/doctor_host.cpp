// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor_host.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <linux/capability.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "cli/color.hpp"
#include "cli/environment.hpp"
#include "cli/output.hpp"
#include "cli/text.hpp"
#include "perf/measure/ports.hpp"
#include "support/capabilities.hpp"
#include "support/processor.hpp"
#include "transport/rdma.hpp"
#include "transport/shm/memory_left.hpp"

namespace shardwire::cli {
namespace {

namespace fs = std::filesystem;

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string numeric(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const from = address.sa_family == AF_INET
                               ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                               : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  inet_ntop(address.sa_family, from, text.data(), text.size());
  return text.data();
}

// --- hints ---

Hint memory_hint(const std::string& root) {
  const auto left = transport::shm::memory_left(root);
  return {"memory", fmt::format("arenas up to {} ({})", human_bytes(left.bytes), left.limit)};
}

std::string limit_text(rlim_t limit, bool bytes) {
  if (limit == RLIM_INFINITY) return "unlimited";
  return bytes ? exact_bytes(limit) : fmt::format("{}", limit);
}

Hint descriptors_hint() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return {"descriptors", fmt::format("{} (hard limit {}); each peer takes some: ulimit -n raises it",
                                     limit_text(limit.rlim_cur, false), limit_text(limit.rlim_max, false))};
}

Hint memlock_hint() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  std::string text = limit_text(limit.rlim_cur, true) + "; matters for RDMA only, which pins the memory that it reads";
  if (transport::pinnable_bytes()) text += ": " + transport::how_to_pin_more(::geteuid());
  return {"locked memory", std::move(text)};
}

std::string attach_text(const std::string& scope, bool capable) {
  if (scope == "3") return "by no process: its bytes come as messages";
  if (capable) return "by this process, which has CAP_SYS_PTRACE";
  if (scope.empty() || scope == "0") return "between processes of one user";
  if (scope == "2") return "by processes with CAP_SYS_PTRACE only: here its bytes come as messages";
  return "from children only: here its bytes come as messages, unless its owner has SHARDWIRE_ALLOW_ATTACH=1";
}

Hint attach_hint(const std::string& root) {
  const std::string scope = first_line(root + "/proc/sys/kernel/yama/ptrace_scope");
  return {"attach", fmt::format("memory of peers outside of arenas is read {} (kernel.yama.ptrace_scope: {})",
                                attach_text(scope, support::has_capability(CAP_SYS_PTRACE, root)),
                                scope.empty() ? "none" : scope)};
}

std::vector<Hint> rdma_hints(const std::string& root) {
  std::vector<Hint> hints;
  for (const perf::PortDetails& port : perf::port_details(root)) {
    hints.push_back({"RDMA", fmt::format("{} port {}: {} ({}), {}, {}", port.device, port.number, port.state,
                                         port.physical_state, port.link_layer, port.rate)});
  }
  if (hints.empty()) hints.push_back({"RDMA", "no device"});
  return hints;
}

std::vector<Hint> environment_hints() {
  std::vector<Hint> hints;
  for (char** one = environ; *one != nullptr; ++one) {
    const std::string_view variable = *one;
    const auto begins = [variable](std::string_view prefix) { return variable.starts_with(prefix); };
    if (begins("SHARDWIRE_") || begins("UCX_") || begins("FI_")) hints.push_back({"environment", *one});
  }
  std::ranges::sort(hints, {}, &Hint::says);
  if (!environment("UCX_TLS")) hints.push_back({"environment", "UCX_TLS is not set: ucx is for RDMA hardware only"});
  return hints;
}

}  // namespace

std::vector<InterfaceFinding> find_interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, &::freeifaddrs);
  std::vector<InterfaceFinding> findings;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    auto known = std::ranges::find(findings, one->ifa_name, &InterfaceFinding::name);
    if (known == findings.end()) {
      InterfaceFinding fresh{
          one->ifa_name, (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_RUNNING) != 0, {}, 0};
      const std::string speed = first_line(fmt::format("/sys/class/net/{}/speed", one->ifa_name));
      fresh.megabits_per_second = std::max(0, std::atoi(speed.c_str()));  // -1: the device does not know it either
      known = findings.insert(findings.end(), std::move(fresh));
    }
    const bool internet =
        one->ifa_addr != nullptr && (one->ifa_addr->sa_family == AF_INET || one->ifa_addr->sa_family == AF_INET6);
    if (internet) known->addresses.push_back(numeric(*one->ifa_addr));
  }
  return findings;
}

std::vector<Hint> find_hints(const std::string& root) {
  std::vector<Hint> hints{memory_hint(root),
                          {"/dev/shm", "is not needed, whatever its size"},
                          attach_hint(root),
                          descriptors_hint(),
                          memlock_hint()};
  std::ranges::move(rdma_hints(root), std::back_inserter(hints));
  std::ranges::move(environment_hints(), std::back_inserter(hints));
  return hints;
}

void print_flags(const std::vector<perf::Flag>& flags, bool json, std::string_view title) {
  if (!json && !flags.empty()) write_output(fmt::format("\n{}\n", title));
  for (const perf::Flag& one : flags) {
    if (json) {
      const nlohmann::json row{{"flag", one.about}, {"subject", one.subject}, {"says", one.says}};
      write_output(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    } else {
      write_output(fmt::format("  {}{} {}\n", marked(fmt::format("{:<14}", one.about), Mark::warning, stdout),
                               one.subject, one.says));
    }
  }
}

std::string describe_machine() {
  utsname names{};
  ::uname(&names);
  const std::string model = support::processor_model();
  return fmt::format("{} {} {}, {} processors{}{}", names.sysname, names.release, names.machine,
                     std::thread::hardware_concurrency(), model.empty() ? "" : ", ", model);
}

}  // namespace shardwire::cli
