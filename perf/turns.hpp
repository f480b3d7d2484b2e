// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "perf/measure/processes.hpp"
#include "perf/measure/row.hpp"
#include "shardwire/types.hpp"

namespace shardwire::perf {

/// Of one process and one turn.
struct TurnSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t cpu_ns = 0;
};
TurnSpan timed_turn(const std::function<void()>& act);

struct TurnTimes {
  Spread wall;
  Spread cpu;
};
/// Requires: at least one span.
TurnTimes times_of(const std::vector<TurnSpan>& spans);

/// Spans of processes that take turns at once. Lies in pages that all of them share; each writes its own.
class TurnBoard {
 public:
  static constexpr int max_processes = 16;
  static constexpr int max_repeats = 64;

  /// Call it before any process takes turns.
  void open(int processes);
  /// Calls `act` with the number of each turn, in each repeat, when all processes have come to it. Returns when all are
  /// done. One more repeat warms up.
  /// Errors: throws std::out_of_range if there are more than 64 turns.
  void take_turns(int process, int repeats, std::size_t turns, const std::function<void(std::size_t turn)>& act);
  /// Of all processes together: from the first that begins to the last that ends.
  [[nodiscard]] TurnTimes times(std::size_t turn, int repeats) const;

 private:
  static constexpr std::size_t max_turns = 64;
  Barrier barrier_;
  int processes_ = 0;
  std::array<std::array<std::array<TurnSpan, max_processes>, max_repeats + 1>, max_turns> spans_;
};

struct TurnRow {
  std::string name;
  std::string commit;  ///< empty: the one this was built from
  int processes = 1;
  int repeats = 1;
  ByteCount bytes = 0;
  TurnTimes times;
  std::string bound;
  TurnTimes bound_times;
};
/// The fields that rows of turns share.
nlohmann::ordered_json turn_row(const TurnRow& row);
/// To standard output, and a line for people to standard error.
void print_turn(const nlohmann::ordered_json& row);

}  // namespace shardwire::perf
