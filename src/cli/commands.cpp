// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

namespace shardwire::cli {

std::span<const Command> commands() {
  static constexpr Command table[] = {
      {"plan", "Show the transfers between ranks, without moving anything", declare_plan},
      {"run", "Move the state of a case between real processes and check every element", declare_run},
      {"drill", "Run a case many times with faults of its processes, and judge every outcome", declare_drill},
      {"perf", "Measure restores against their bounds, in the same run", declare_perf},
      {"doctor", "Show the transports that work here, or the path that the bytes of a case would take", declare_doctor},
      {"case", "Check a case file, write one of a model, or print the JSON Schema of case files", declare_case},
      {"keep", "Hold the state of a job on this host beyond the end of its trainers", declare_keep},
      {"key", "Make a job key in a new file", declare_key},
  };
  return table;
}

}  // namespace shardwire::cli
