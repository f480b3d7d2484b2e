// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "shardwire/plan.hpp"

namespace shardwire {

void require_no_gaps(std::vector<Gap> gaps) {
  if (gaps.empty()) return;
  constexpr std::size_t named = 3;
  std::string message = gaps.size() == 1 ? "a wanted region has no holder: "
                                         : fmt::format("{} wanted regions have no holder: ", gaps.size());
  for (std::size_t i = 0; i < std::min(gaps.size(), named); ++i) {
    fmt::format_to(std::back_inserter(message), "{}{}:{} {} for rank {}", i == 0 ? "" : "; ", gaps[i].fqn,
                   gaps[i].state, to_string(gaps[i].box), to_int(gaps[i].target));
  }
  if (gaps.size() > named) fmt::format_to(std::back_inserter(message), "; and {} more", gaps.size() - named);
  throw Error(ErrorCode::layout_mismatch, message, std::move(gaps));
}

}  // namespace shardwire
