// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "schedule.hpp"
#include "shardwire/report.hpp"

namespace shardwire::simulation {

/// How one restore or exchange has ended.
struct Ending {
  std::string method;  ///< by which most bytes were to come, "none", or "rounds" and "exchange" of exchanges
  std::vector<Action::Kind> struck{};  ///< what happened in the job while it ran, each kind once
  bool completed = false;
  ByteCount needed = 0;
  ByteCount again = 0;
  Duration lasted{};  ///< of a restore
  /// Of a member that was killed, lost its power or was stopped: from then to the decision to do without it.
  std::vector<std::pair<Action::Kind, Duration>> notices{};
};

/// Kinds of actions that can disturb a call, and that began in (`from`, `to`] or lasted into it. Times count from the
/// beginning of the run.
std::vector<Action::Kind> struck_between(const Schedule& schedule, Duration from, Duration to);

/// The last action up to `to` that killed or stopped this member, or took its power; none if there is none.
std::optional<Action> last_blow(const Schedule& schedule, int member, Duration to);

/// Sums of endings by what was struck and by method.
class EndingTable {
 public:
  void add(const Ending& ending);
  [[nodiscard]] std::string text() const;

 private:
  struct Cell {
    std::uint64_t completed = 0, refused = 0;
    ByteCount needed = 0, again = 0;
  };
  // The name of a kind, "nothing", or "anything".
  std::map<std::string, std::map<std::string, Cell>> cells_;
  std::map<std::string, std::vector<Duration>> notices_;
};

}  // namespace shardwire::simulation
