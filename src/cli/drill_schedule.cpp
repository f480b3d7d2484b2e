// SPDX-License-Identifier: Apache-2.0
#include "cli/drill_schedule.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "support/splitmix64.hpp"

namespace shardwire::cli {
namespace {

/// A sequence of numbers that depends on the seed alone.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : state_(seed) {}
  /// One of 0 .. count-1.
  std::size_t below(std::size_t count) { return support::splitmix64(state_ += support::splitmix64_step) % count; }

 private:
  std::uint64_t state_;
};

}  // namespace

std::vector<Fault> faults_of_seed(std::uint64_t seed, const Case& job, std::span<const FaultKind> kinds) {
  Draws draws(support::splitmix64(seed));
  std::vector<Rank> ranks;
  for (std::int32_t rank = 0; rank < job.source.ranks; ++rank) {
    if (!job.source.is_lost(Rank{rank})) ranks.push_back(Rank{rank});
  }
  constexpr std::size_t one_in = 4;  // seeds with two faults
  const std::size_t count = draws.below(one_in) == 0 ? std::min<std::size_t>(2, ranks.size()) : 1;
  std::vector<Fault> faults;
  for (std::size_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = kinds[draws.below(kinds.size())];
    const auto rank = ranks.begin() + static_cast<std::ptrdiff_t>(draws.below(ranks.size()));
    fault.rank = *rank;
    ranks.erase(rank);
    if (draws.below(2) == 0 || fault.kind == FaultKind::corrupt) {  // bits flip as bytes arrive
      fault.percent = static_cast<double>(draws.below(101));
    } else {
      fault.stage = fault_stages()[draws.below(fault_stages().size())];
    }
    faults.push_back(std::move(fault));
  }
  return faults;
}

std::string command_of_seed(const DrillWords& words, std::uint64_t seed) {
  std::string text = fmt::format("shardwire drill {} --seeds {}:{} --verify {} --notice {} --timeout {}", words.path,
                                 seed, seed + 1, words.verify, words.notice_seconds, words.timeout_seconds);
  if (!words.transport.empty()) text += " --transport " + words.transport;
  if (!words.kinds.empty()) text += " --kinds " + words.kinds;
  if (!words.rate.empty()) text += " --rate " + words.rate;
  if (words.disjoint) text += " --disjoint";
  return text;
}

}  // namespace shardwire::cli
