// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "shardwire/session.hpp"

namespace shardwire::cli {

/// What `shardwire run` was asked for, checked.
struct RunOptions {
  std::string transport = "auto";
  ByteCount staging_bytes = 256u << 20;
  Duration deadline = std::chrono::seconds(600);  ///< of one restore
  ByteCount rate_bytes_per_second = 0;            ///< 0: no cap
  Verify verify = Verify::none;
  CostModel costs{};
  MemoryKind memory = MemoryKind::host;  ///< of the state, on both sides
  int repeat = 1;
  bool disjoint = false;
  bool exchange = false;   ///< in rounds of a collective, by Session::exchange, instead of publications and restores
  bool bind_only = false;  ///< no values are made, moved or checked: a restore only says how they would come
  std::vector<std::int32_t> processes{};  ///< member that each target rank is; empty: the one of its own number
  LogLevel log = LogLevel::warning;
  Duration join_timeout = std::chrono::seconds(60);
};

/// Time that ranks get beyond the deadline to notice it themselves, before they are ended from outside.
inline constexpr Duration grace = std::chrono::seconds(10);
/// Time that ranks get to say themselves why a job cannot begin, before those that wait for the others are ended.
inline constexpr Duration vain_wait = std::chrono::seconds(3);
/// Bound of what the deadline does not cover: joining, making values, checking them.
inline constexpr Duration idle_limit = std::chrono::seconds(600);

/// What one member of the job is.
struct MemberRole {
  int member = 0;
  std::optional<Rank> source;
  bool lost = false;  ///< as a source: there, and holds nothing
  std::optional<Rank> target;
};

int members_of(const Case& job, const RunOptions& options);
MemberRole role_of(const Case& job, const RunOptions& options, int member);

}  // namespace shardwire::cli
