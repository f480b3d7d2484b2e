// SPDX-License-Identifier: Apache-2.0
// Measures strided copies of a device beside its plain copies: one row for each way and length of runs.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "memory/device.hpp"
#include "perf/measure/device_turns.hpp"

namespace {

using namespace shardwire;

int run(int argc, char** argv) {
  perf::DeviceTurns turns;
  CLI::App app{"Measures strided copies of a device beside its plain copies", "perf_device_copy"};
  app.add_option("--device", turns.device, "Which device")->check(CLI::NonNegativeNumber);
  app.add_option("--bytes", turns.bytes, "Bytes of a copy on the device")->transform(CLI::AsSizeValue(false));
  app.add_option("--host-bytes", turns.host_bytes, "Bytes of a copy from or to the host")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--runs", turns.runs, "Bytes of a run")->transform(CLI::AsSizeValue(false))->delimiter(',');
  app.add_option("--repeats", turns.repeats, "Timed repeats; one more warms up")->check(CLI::Range(1, 1000));
  app.add_option("--in-a-row", turns.in_a_row, "Copies that are timed together")->check(CLI::Range(1, 1000));
  app.add_option("--commit", turns.commit, "Commit that is measured; default: the one it was built from");
  try {
    app.parse(argc, argv);
    for (const ByteCount one : turns.runs) {
      if (one == 0 || one > turns.bytes || one > turns.host_bytes) {
        throw CLI::ValidationError("--runs", fmt::format("a run of {} bytes does not fit into a copy", one));
      }
    }
  } catch (const CLI::Success& asked) {  // --help
    return app.exit(asked);
  } catch (const CLI::Error& error) {
    fmt::print(stderr, "perf_device_copy: {}\n", error.what());
    return 2;
  }
  const memory::FoundRuntime found = memory::device_runtime();
  if (!found.runtime) {
    fmt::print(stderr, "perf_device_copy: there is no device to measure: {}\n", found.why_not);
    return 2;
  }
  for (const auto& row : perf::device_rows(*found.runtime, turns)) {
    fmt::print("{}\n", row.dump());
    fmt::print(stderr, "{:<28} runs of {:>10}: {:>8.2f} GB/s, {:.2f} of {}\n", row["name"].get<std::string>(),
               row["run_bytes"].get<ByteCount>(), row["bytes_per_second"].get<double>() * 1e-9,
               row["ratio"].get<double>(), row["bound"].get<std::string>());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "perf_device_copy: {}\n", error.what());
    return 1;
  }
}
