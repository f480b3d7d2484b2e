// SPDX-License-Identifier: Apache-2.0
// Measures strided copies of a device beside its plain copies: one row for each method and length of runs.
#include <fmt/core.h>

#include <cstdio>

#include "memory/device.hpp"
#include "perf/measure/device_turns.hpp"
#include "perf/program.hpp"

using namespace shardwire;

int main(int argc, char** argv) {
  perf::DeviceTurns turns;
  perf::Program program("perf_device_copy", "Measures strided copies of a device against its plain copies",
                        turns.commit);
  CLI::App& app = program.options();
  app.add_option("--device", turns.device, "Which device")->check(CLI::NonNegativeNumber);
  app.add_option("--bytes", turns.bytes, "Bytes of a copy on the device")->transform(CLI::AsSizeValue(false));
  app.add_option("--host-bytes", turns.host_bytes, "Bytes of a copy from or to the host")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--runs", turns.runs, "Bytes of a run")->transform(CLI::AsSizeValue(false))->delimiter(',');
  app.add_option("--repeats", turns.repeats, "Timed repeats; one more warms up")->check(CLI::Range(1, 1000));
  app.add_option("--in-a-row", turns.in_a_row, "Copies that are timed together")->check(CLI::Range(1, 1000));
  return program.run(argc, argv, [&] {
    for (const ByteCount one : turns.runs) {
      if (one == 0 || one > turns.bytes || one > turns.host_bytes) {
        throw CLI::ValidationError("--runs", fmt::format("a run of {} bytes does not fit into a copy", one));
      }
    }
    const memory::FoundRuntime found = memory::device_runtime();
    if (!found.runtime) {
      program.complain("there is no device to measure: " + found.why_not);
      return 2;
    }
    for (const auto& row : perf::device_rows(*found.runtime, turns)) {
      perf::print_row(row);
      fmt::print(stderr, "{:<28} runs of {:>10}: {:>8.2f} GB/s, {:.2f} of {}\n", row["name"].get<std::string>(),
                 row["run_bytes"].get<ByteCount>(), row["bytes_per_second"].get<double>() * 1e-9,
                 row["ratio"].get<double>(), row["bound"].get<std::string>());
    }
    return 0;
  });
}
