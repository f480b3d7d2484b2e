// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/run_options.hpp"
#include "cli/run_result.hpp"

namespace shardwire::cli {

class FaultAgent;

/// One progress report of a member.
struct MemberProgress {
  std::string_view phase;  ///< "join", "allocate", "fill", "wait", "restore" or "bind", "check"
  int repeat = 0;
  ByteCount done_bytes = 0;
  ByteCount total_bytes = 0;
};

struct WorkerConfig {
  const Case& job;
  const RunOptions& options;
  MemberRole role;
  Bootstrap bootstrap;
  /// Called from this thread and from the session's; must not block.
  std::function<void(const MemberProgress&)> progress;
  /// Delivers the result out of this process; called once while the session is still open. Other members may need
  /// `patience` until they deliver theirs.
  std::function<void(Session*, const MemberResult&, Duration patience)> deliver;
  /// No supervisor watches the members' processes: a member that has not joined in time is missing.
  bool awaits_members = false;
  FaultAgent* faults = nullptr;  ///< null: the job has no faults
  /// Names what a restore of this member has waited for. Called from the session's thread; must not block.
  std::function<void(std::string_view)> awaits{};
  /// Tells why a restore of this member has failed, before the other members have ended theirs.
  std::function<void(std::string_view)> failed{};
  /// Tells that a member has joined. Called on member 0, from the session's thread; must not block.
  std::function<void(int member)> joined{};
};

/// How long a member waits for the others once restores have begun. A member that does not answer delays the end of the job
/// by about half a minute, whatever the timeout of a restore is.
struct Patience {
  Duration timeout;         ///< of a restore
  bool unanswered = false;  ///< a member has not come to a meeting in time; it does not read either

  /// Until all have restored. All have begun together, so their deadlines pass together.
  [[nodiscard]] Duration to_meet(Duration since_begin) const;
  /// Until the readers of the publication have ended.
  [[nodiscard]] Duration to_retire() const;
  /// Until the other members deliver their results.
  [[nodiscard]] Duration to_deliver() const;
  /// Until all leave.
  [[nodiscard]] Duration to_leave() const;
};

/// "waited 15 s for member 2 of 3 to join", or to answer if it has joined. `joined`: members that have; only member 0 knows them,
/// and none are given elsewhere.
std::string absence_text(Duration waited, const std::vector<int>& missing, const std::set<int>& joined, int members);

/// Takes part in the whole job as one member: publishes, restores, checks, for the given number of repeats. Errors are
/// in the result; nothing is thrown.
MemberResult run_worker(const WorkerConfig& config);

}  // namespace shardwire::cli
