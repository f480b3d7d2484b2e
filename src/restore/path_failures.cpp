// SPDX-License-Identifier: Apache-2.0
#include "restore/path_failures.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace shardwire::restore {

namespace {

// A first failure is likely to be that of one connection. More in a row are likely to be of the network: 8 take 1.3 s.
constexpr Duration first_wait = std::chrono::milliseconds(10);

}  // namespace

void PathFailures::add(Rank source, std::size_t fabric, bool progressed, const std::string& why) {
  Failures& failures = failures_[source][fabric];
  if (progressed) failures.in_a_row = 0;
  ++failures.in_a_row;
  failures.why = why;
  if (failures.in_a_row > 1) wait_ = std::max(wait_, first_wait * (1 << std::min(failures.in_a_row - 2, max_in_a_row)));
}

std::map<std::size_t, std::string> PathFailures::failed_fabrics(Rank source) const {
  std::map<std::size_t, std::string> failed_fabrics;
  const auto found = failures_.find(source);
  if (found == failures_.end()) return failed_fabrics;
  for (const auto& [fabric, failures] : found->second) {
    if (failures.in_a_row < max_in_a_row) continue;
    failed_fabrics[fabric] = fmt::format("it failed {} times in a row: {}", failures.in_a_row, failures.why);
  }
  return failed_fabrics;
}

std::vector<Rank> PathFailures::standing() const {
  std::vector<Rank> holders;
  for (const auto& [holder, times] : standstills_) holders.push_back(holder);
  return holders;
}

Duration PathFailures::patience(Rank holder, Duration first) const {
  const auto found = standstills_.find(holder);
  return found == standstills_.end() ? first : first * (1 << std::min(found->second, max_in_a_row));
}

Duration PathFailures::take_wait() {
  return std::exchange(wait_, Duration::zero());
}

}  // namespace shardwire::restore
