// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lanes.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace shardwire::transport::ucx {
namespace {

// As in ucp.h from 1.14 on; headers of 1.13 have the call but not these fields, and a library of 1.13 ignores them.
struct TransportEntry {
  const char* transport = nullptr;
  const char* device = nullptr;
};
struct EndpointAttributes {
  std::uint64_t field_mask = std::uint64_t{1} << 3;  // the transports
  std::array<char, UCP_ENTITY_NAME_MAX> name{};
  sockaddr_storage local{};
  sockaddr_storage remote{};
  TransportEntry* entries = nullptr;
  unsigned count = 0;
  std::size_t entry_bytes = sizeof(TransportEntry);
  void* user_data = nullptr;
};

std::vector<std::string> queried_names(ucp_ep* endpoint) {
  std::array<TransportEntry, 64> entries{};  // UCX has 16 lanes at most, in some builds 64
  EndpointAttributes asked;
  asked.entries = entries.data();
  asked.count = entries.size();
  if (ucp_ep_query(endpoint, reinterpret_cast<ucp_ep_attr_t*>(&asked)) != UCS_OK) return {};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min<std::size_t>(asked.count, entries.size()); ++i) {
    const TransportEntry& entry = entries[i];
    if (entry.transport == nullptr || entry.device == nullptr) break;
    names.push_back(std::string(entry.transport) + '/' + entry.device);
  }
  return names;
}

// Parses UCX's printed form: "#  lane[0]:  3:tcp/lo.0 md[1] -> md[2]/...".
std::vector<Lane> parse_lanes(std::string_view printed) {
  std::vector<Lane> lanes;
  while (!printed.empty()) {
    const std::string_view line = printed.substr(0, printed.find('\n'));
    printed.remove_prefix(std::min(line.size() + 1, printed.size()));
    const std::size_t at = line.find("lane[");
    const std::size_t index = at == std::string_view::npos ? at : line.find(':', at);
    const std::size_t first = index == std::string_view::npos ? index : line.find(':', index + 1);
    if (first == std::string_view::npos) continue;
    std::string_view name = line.substr(first + 1, line.find(' ', first + 1) - first - 1);
    name = name.substr(0, name.rfind('.'));
    if (std::ranges::find(lanes, name, &Lane::name) != lanes.end()) continue;
    Lane& lane = lanes.emplace_back(Lane{.name = std::string(name)});
    constexpr std::string_view before_domain = "-> md[";
    const std::size_t domain = line.find(before_domain);
    if (domain == std::string_view::npos) continue;
    const std::string_view number = line.substr(domain + before_domain.size());
    int value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec == std::errc())
      lane.peer_domain = value;
  }
  return lanes;
}

std::vector<Lane> printed_lanes(ucp_ep* endpoint) {
  const ScopedLogSuppression no_log;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);
  return parse_lanes(printed);
}

}  // namespace

std::vector<Lane> lanes_of(ucp_ep* endpoint) {
  std::vector<Lane> lanes = printed_lanes(endpoint);
  for (std::string& name : queried_names(endpoint)) {
    if (std::ranges::find(lanes, name, &Lane::name) == lanes.end()) lanes.push_back({.name = std::move(name)});
  }
  return lanes;
}

}  // namespace shardwire::transport::ucx
