// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

namespace shardwire::cli {

std::span<const Command> commands() {
  static constexpr Command table[] = {
      {"plan", "Show which rank sends what to whom, without moving anything", declare_plan},
      {"run", "Move the state of a case between real processes and check every element", declare_run},
      {"perf", "Measure restores beside what bounds them, in the same run", declare_perf},
      {"doctor", "Show what works here, or which path the bytes of a case would take", declare_doctor},
  };
  return table;
}

}  // namespace shardwire::cli
