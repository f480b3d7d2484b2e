// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "cli/fault.hpp"
#include "cli/run_pipe.hpp"
#include "session/surroundings.hpp"
#include "support/wake_event.hpp"

namespace shardwire::cli {

/// The descriptors of a member's process, all of them pipes from or to the command.
struct MemberEnds {
  int results = -1;   ///< written by the member: progress, events, result
  int commands = -1;  ///< read by the member: a byte for each fault that it is to suffer; -1: the job has no faults
  int replies = -1;   ///< read by the member: a byte for each event of its restores
};

/// Commands and replies.
enum class FaultByte : char { cut = 'c', slow = 's', restep = 'r', go_on = 'g', spoil = 'y', keep = 'n' };

/// Carries out the faults of one member, and reports the events of its restores to the command. An event waits for the
/// reply, so that a fault strikes before the restore goes on.
/// Threads: the probe's functions on the session's thread; all others on the worker's.
class FaultAgent final {
 public:
  /// Made before the session, whose sockets it cuts. Ownership: borrows the pipe and its ends.
  FaultAgent(MemberPipe& pipe, const MemberEnds& ends, std::span<const Fault> faults);
  ~FaultAgent();
  FaultAgent(const FaultAgent&) = delete;
  FaultAgent& operator=(const FaultAgent&) = delete;

  /// Surroundings of the member's session: it can be struck from then on.
  detail::Surroundings surroundings();
  /// The member's restore of this repeat begins; `restep` is the start of its next step.
  void begin(int repeat, std::function<void()> restep);
  /// The restore has ended, or the member wants nothing. Returns when the restores of all other members have ended too,
  /// apart from members that cannot go on. The member's step stays until the next restore.
  void end();

 private:
  void obey();
  void strike(FaultByte command);
  void cut() const;
  FaultByte ask(const std::string& event);

  restore::Probe probe_;
  MemberPipe& pipe_;
  MemberEnds ends_;
  std::set<Rank> spoilt_;     // sources whose deliveries may be spoilt
  std::set<ino_t> not_ours_;  // sockets of the process before the session
  std::atomic<bool> slow_ = false;
  std::atomic<int> repeat_ = 0;
  std::mutex mutex_;
  std::function<void()> restep_;  // guarded by mutex_
  support::WakeEvent ending_;
  std::thread commands_;
};

}  // namespace shardwire::cli
