// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "case/case.hpp"
#include "cli/fault.hpp"
#include "session/settings.hpp"
#include "shardwire/session.hpp"

namespace shardwire::cli {

/// The validated options of `shardwire run`.
struct RunOptions {
  std::string transport = "auto";
  ByteCount staging_bytes = 256u << 20;
  Duration timeout = std::chrono::seconds(600);  ///< per restore
  ByteCount rate_bytes_per_second = 0;           ///< 0: no limit
  Verify verify = Verify::generation;
  Replicas replicas = Replicas::spread;
  CostModel costs{};
  MemoryKind memory = MemoryKind::host;  ///< of the state, on both sides
  int repeat = 1;
  bool disjoint = false;
  bool exchange = false;   ///< by Session::exchange in rounds of a collective, instead of publications and restores
  bool bind_only = false;  ///< makes, moves and checks no values: a restore only reports the paths
  std::vector<std::int32_t> processes{};  ///< member of each target rank; empty: target rank i is member i
  LogStyle log{};
  Duration join_timeout = std::chrono::seconds(60);
  Duration notice = RestoreOptions{}.notice;
  std::vector<Fault> faults{};
  bool shows_progress = true;
  bool finds_links = false;  ///< for MemberResult::links
};

/// Time beyond the deadline in which ranks may detect it themselves, before they are killed from outside.
inline constexpr Duration grace = std::chrono::seconds(10);
/// Time in which ranks may report why a job cannot begin, before those that wait for the others are killed.
inline constexpr Duration vain_wait = std::chrono::seconds(3);
/// Time limit for work outside the deadline: joining, making values, checking them.
inline constexpr Duration idle_limit = std::chrono::seconds(600);

/// The role of one member of the job.
struct MemberRole {
  int member = 0;
  std::optional<Rank> source;
  bool lost = false;  ///< as a source: present, but holds nothing
  std::optional<Rank> target;
};

int members_of(const Case& job, const RunOptions& options);
MemberRole role_of(const Case& job, const RunOptions& options, int member);

}  // namespace shardwire::cli
