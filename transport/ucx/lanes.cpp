// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/lanes.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace shardwire::transport::ucx {

std::vector<std::string> printed_lanes(ucp_ep* endpoint) {
  const ScopedLogSuppression no_log;
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* const stream = open_memstream(&text, &size);
  if (stream == nullptr) return {};
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const std::string printed(text, size);
  std::free(text);

  // "#  lane[0]:  3:tcp/lo.0 md[1] -> ...": the word behind the index names transport and device.
  std::vector<std::string> out;
  for (std::size_t at = printed.find("lane["); at != std::string::npos; at = printed.find("lane[", at + 1)) {
    const std::size_t index = printed.find(':', at);
    const std::size_t first = printed.find(':', index + 1);
    const std::size_t line_end = std::min(printed.find('\n', at), printed.size());
    if (first == std::string::npos || first > line_end) continue;
    std::string lane = printed.substr(first + 1, printed.find_first_of(" \n", first + 1) - first - 1);
    if (const std::size_t path = lane.rfind('.'); path != std::string::npos) lane.resize(path);
    if (std::find(out.begin(), out.end(), lane) == out.end()) out.push_back(std::move(lane));
  }
  return out;
}

}  // namespace shardwire::transport::ucx
