// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cli/fault.hpp"
#include "cli/fault_agent.hpp"
#include "support/descriptors.hpp"

namespace shardwire::cli {

/// Strikes the processes of a job at the events that their restores report. A restore that has reported an event goes on
/// once the restores of all members have begun and every fault that was due by then has struck. A member whose restore has
/// ended waits for the others, since they may read from it; a stopped process is killed when it is the last one.
/// Threads: that of the supervisor.
class FaultControl {
 public:
  /// `remote_bytes`: payload that crosses between processes in all restores of the job.
  FaultControl(std::vector<Fault> faults, ByteCount remote_bytes);

  /// Pipes for one member, before its process is started. `ends.results` is the caller's. Errors: throws
  /// std::system_error.
  void open(int member, MemberEnds& ends);
  /// In the parent, after the start.
  void started(int member, pid_t pid);
  /// In a child: closes what belongs to other members.
  void close_all_but(int member);
  /// A line that a member has written; false if it is no event.
  bool take(int member, const nlohmann::json& line);
  /// The process has ended.
  void ended(int member);
  /// The fault, if there is one, by which this member cannot finish its own work.
  [[nodiscard]] const Fault* fatal_of(int member) const;
  [[nodiscard]] const std::vector<FaultOutcome>& outcomes() const { return outcomes_; }

 private:
  struct Member {
    pid_t pid = -1;
    support::Descriptor commands;  // the writing ends
    support::Descriptor replies;
    support::Descriptor commands_of_child;
    support::Descriptor replies_of_child;
    bool alive = false;
    bool stopped = false;
    bool waits_for_reply = false;  // to an event
    bool waits_for_others = false;
    int unconfirmed = 0;  // commands
    int begun = -1;       // the last repeat in which its restore has begun
    int restored = -1;    // the last repeat in which it has ended
  };
  /// Whether it is true of all members that can still go on.
  template <typename Is>
  [[nodiscard]] bool all_living(Is is) const;
  void strike_due();
  [[nodiscard]] bool is_due(const Fault& fault) const;
  void strike(FaultOutcome& outcome);
  void command(Member& member, FaultByte byte);
  void reply(Member& member, FaultByte byte);
  void go_on();
  void end_round();
  [[nodiscard]] bool spoil_now(Rank source);

  std::vector<FaultOutcome> outcomes_;
  ByteCount remote_bytes_;
  ByteCount arrived_bytes_ = 0;
  std::set<std::string> entered_;  // stages
  std::map<int, Member> members_;
  int repeat_ = 0;  // of the last event
};

}  // namespace shardwire::cli
