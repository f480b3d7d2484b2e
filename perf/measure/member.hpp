// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "perf/measure/facts.hpp"
#include "perf/measure/meeting.hpp"
#include "perf/measure/setup.hpp"

namespace shardwire::perf {

/// How one member takes part.
struct MemberRole {
  int member = 0;
  bool alone = true;  ///< in its process: what the process uses is what the member uses
};

/// Joins as the setup says.
Session join(const Setup& setup, Bootstrap bootstrap);

/// Takes all turns of all measurements. All members call it. Returns what every member found out, by member, on member 0,
/// and nothing on the others. Errors: throws; the others have to be ended then, they would wait.
std::vector<MemberFacts> take_turns(const Setup& setup, Session& session, Meeting& meeting, MemberRole role);

}  // namespace shardwire::perf
