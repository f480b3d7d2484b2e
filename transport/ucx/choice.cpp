// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "transport/ucx/worker.hpp"

namespace shardwire::transport::ucx {
namespace {

// Names and aliases of what stays on one host. `self` is for a rank that talks to itself.
constexpr std::array<std::string_view, 3> preferred{"posix", "cma", "self"};  // one mapper is enough: fewer lanes
constexpr std::array<std::string_view, 6> of_host{"posix", "sysv", "xpmem", "cma", "knem", "self"};
constexpr std::array<std::string_view, 3> host_aliases{"sm", "shm", "mm"};

template <std::size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (comma > 0) out.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

std::string join(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out.append(out.empty() ? "" : ",").append(name);
  return out;
}

// Asks UCX and not the environment, so that ucx.conf counts too.
std::string configured_transports() {
  ucp_config_t* raw = nullptr;
  if (ucp_config_read(nullptr, nullptr, &raw) != UCS_OK) return "all";
  const Config config(raw);
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return "all";
  ucp_config_print(raw, stream, nullptr, UCS_CONFIG_PRINT_CONFIG);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);
  constexpr std::string_view key = "UCX_TLS=";
  const std::size_t at = printed.find(key);
  if (at == std::string::npos) return "all";
  const std::size_t first = at + key.size();
  return printed.substr(first, printed.find('\n', first) - first);
}

TransportChoice exclude(const std::vector<std::string>& names) {
  TransportChoice out;
  std::vector<std::string> host;
  const bool all_of_host =
      std::any_of(names.begin(), names.end(), [](const auto& n) { return contains(host_aliases, n); });
  for (const std::string_view name : preferred) {
    const bool wanted = std::find(names.begin(), names.end(), name) == names.end();
    if (wanted && (!all_of_host || name == "self")) host.emplace_back(name);
  }
  std::vector<std::string> left = names;
  for (const std::string_view name : {"sm", "self"}) {
    if (std::find(left.begin(), left.end(), name) == left.end()) left.emplace_back(name);
  }
  out.shared_memory = join(host);
  out.network = fmt::format("^{}", join(left));
  return out;
}

TransportChoice pick(const std::vector<std::string>& names) {
  std::vector<std::string> host;
  std::vector<std::string> network;
  for (const std::string& name : names) {
    if (name == "all") return exclude({});
    (contains(of_host, name) || contains(host_aliases, name) ? host : network).push_back(name);
  }
  return {join(host), join(network)};
}

bool can_map(std::string_view list) {
  const auto names = split(list);
  return std::any_of(names.begin(), names.end(), [](const auto& name) {
    return name == "posix" || name == "sysv" || contains(host_aliases, name);
  });
}

}  // namespace

TransportChoice choose_transports() {
  const std::string configured = configured_transports();
  TransportChoice out =
      configured.starts_with('^') ? exclude(split(std::string_view(configured).substr(1))) : pick(split(configured));
  // Without memory that can be mapped the host's context has no purpose: TCP through lo does the same.
  if (!can_map(out.shared_memory)) out.shared_memory.clear();
  if (out.shared_memory.find("self") == std::string::npos && !out.shared_memory.empty()) out.shared_memory += ",self";
  return out;
}

std::string library_version() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  return fmt::format("ucx {}.{}.{}", major, minor, release);
}

}  // namespace shardwire::transport::ucx
