// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lanes.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

namespace shardwire::transport::ucx {

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

}  // namespace shardwire::transport::ucx
