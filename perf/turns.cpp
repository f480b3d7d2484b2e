// SPDX-License-Identifier: Apache-2.0
#include "perf/turns.hpp"

#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "perf/program.hpp"

namespace shardwire::perf {

namespace {

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

TurnSpan timed_turn(const std::function<void()>& act) {
  TurnSpan span;
  span.cpu_ns = -clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  span.begin_ns = clock_ns(CLOCK_MONOTONIC);
  act();
  span.end_ns = clock_ns(CLOCK_MONOTONIC);
  span.cpu_ns += clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  return span;
}

TurnTimes times_of(const std::vector<TurnSpan>& spans) {
  std::vector<double> wall;
  std::vector<double> cpu;
  for (const TurnSpan& span : spans) {
    wall.push_back(static_cast<double>(span.end_ns - span.begin_ns) * 1e-9);
    cpu.push_back(static_cast<double>(span.cpu_ns) * 1e-9);
  }
  return {spread_of(wall), spread_of(cpu)};
}

void TurnBoard::open(int processes) {
  processes_ = processes;
  barrier_.open(processes);
}

void TurnBoard::take_turns(int process, int repeats, std::size_t turns,
                           const std::function<void(std::size_t turn)>& act) {
  for (std::size_t repeat = 0; repeat <= static_cast<std::size_t>(repeats); ++repeat) {
    for (std::size_t turn = 0; turn < turns; ++turn) {
      TurnSpan& span = spans_.at(turn).at(repeat).at(static_cast<std::size_t>(process));
      barrier_.wait();
      span = timed_turn([&] { act(turn); });
    }
  }
  barrier_.wait();  // nobody goes before all are done
}

TurnTimes TurnBoard::times(std::size_t turn, int repeats) const {
  std::vector<TurnSpan> together;
  for (std::size_t repeat = 1; repeat <= static_cast<std::size_t>(repeats); ++repeat) {  // the one before warmed up
    TurnSpan all{std::numeric_limits<std::int64_t>::max(), 0, 0};
    for (std::size_t process = 0; process < static_cast<std::size_t>(processes_); ++process) {
      const TurnSpan& span = spans_[turn][repeat][process];
      all.begin_ns = std::min(all.begin_ns, span.begin_ns);
      all.end_ns = std::max(all.end_ns, span.end_ns);
      all.cpu_ns += span.cpu_ns;
    }
    together.push_back(all);
  }
  return times_of(together);
}

nlohmann::ordered_json turn_row(const TurnRow& row) {
  const auto& [wall, cpu] = row.times;
  nlohmann::ordered_json out;
  out["name"] = row.name;
  out["commit"] = commit(row.commit);
  out["machine"] = machine();
  out["versions"] = versions();
  out["processes"] = row.processes;
  out["repeats"] = row.repeats;
  out["seconds"] = wall.median;
  out["seconds_min"] = wall.least;
  out["seconds_max"] = wall.most;
  out["bytes"] = row.bytes;
  out["bytes_per_second"] = static_cast<double>(row.bytes) / wall.median;
  out["bound"] = row.bound;
  out["bound_seconds"] = row.bound_times.wall.median;
  out["bound_seconds_min"] = row.bound_times.wall.least;
  out["bound_seconds_max"] = row.bound_times.wall.most;
  out["ratio"] = row.bound_times.wall.median / wall.median;
  out["cpu_ratio"] = row.bound_times.cpu.median / cpu.median;
  return out;
}

void print_turn(const nlohmann::ordered_json& row) {
  print_row(row);
  fmt::print(stderr, "{:<62} {:>6.2f} GB/s, {:.2f} of {}; by processor time {:.2f}\n", row["name"].get<std::string>(),
             row["bytes_per_second"].get<double>() * 1e-9, row["ratio"].get<double>(), row["bound"].get<std::string>(),
             row["cpu_ratio"].get<double>());
}

}  // namespace shardwire::perf
