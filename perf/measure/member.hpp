// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "perf/measure/facts.hpp"
#include "perf/measure/meeting.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// The role of one member.
struct MemberRole {
  int member = 0;
  bool alone = true;  ///< in its process: the process's usage is the member's usage
};

/// Joins with the options of the setup.
Session join(const Setup& setup, Bootstrap bootstrap);

/// Called after each timed turn, with the bytes that all targets need in it.
using TurnDone = std::function<void(ByteCount needed_bytes)>;

/// Takes all turns of all measurements. All members call it. Returns the results of every member, by member, on member
/// 0, and nothing on the others. Member 0 calls `done`. Errors: throws; the caller must then end the other members, which
/// would wait.
std::vector<MemberFacts> take_turns(const Setup& setup, Session& session, Meeting& meeting, MemberRole role,
                                    const TurnDone& done = {});

}  // namespace shardwire::perf
