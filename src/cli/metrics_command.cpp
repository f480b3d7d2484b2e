// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "cli/command.hpp"
#include "cli/output.hpp"
#include "telemetry/metrics_union.hpp"

namespace shardwire::cli {
namespace {

struct MetricsOptions {
  std::string folder;
  std::optional<double> max_age;
};

std::string metrics_of(const MetricsOptions& options) {
  using Age = std::chrono::duration<double>;
  try {
    return telemetry::metrics_union(options.folder,
                                    options.max_age ? std::optional(Age(*options.max_age)) : std::nullopt);
  } catch (const std::filesystem::filesystem_error& error) {
    throw UsageError(options.folder + ": " + error.code().message());
  }
}

}  // namespace

std::function<int()> declare_metrics(CLI::App& app) {
  const auto options = std::make_shared<MetricsOptions>();  // owners: the parser and the run
  app.add_option("FOLDER", options->folder, "that SHARDWIRE_METRICS_FOLDER names for the members")->required();
  app.add_option("--max-age", options->max_age, "leave out files that were written more seconds ago");
  return [options] {
    if (options->max_age && !(*options->max_age >= 0)) throw UsageError("--max-age: seconds are expected, 0 or more");
    write_output(metrics_of(*options));
    return exit_done;
  };
}

}  // namespace shardwire::cli
