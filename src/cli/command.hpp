// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <span>
#include <stdexcept>
#include <string_view>

namespace shardwire::cli {

/// Exit codes that scripts rely on.
enum Exit : int { exit_done = 0, exit_failed = 1, exit_usage = 2, exit_interrupted = 130 };

/// Bad usage that is detected after the options were parsed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A command line that --help shows.
struct Example {
  std::string_view line;
  std::string_view what;
};

/// One subcommand.
struct Command {
  std::string_view name;
  std::string_view summary;
  std::span<const Example> examples;
  /// Adds the options to `app`; the returned function runs the command and returns the exit code.
  /// Errors: the run may throw CaseError and UsageError (exit 2) or any other exception (exit 1).
  std::function<int()> (*declare)(CLI::App& app);
};

/// All commands; a new command needs a file and a line in commands.cpp.
std::span<const Command> commands();

std::function<int()> declare_case(CLI::App& app);
std::function<int()> declare_completion(CLI::App& app);
std::function<int()> declare_doctor(CLI::App& app);
std::function<int()> declare_drill(CLI::App& app);
std::function<int()> declare_keep(CLI::App& app);
std::function<int()> declare_key(CLI::App& app);
std::function<int()> declare_metrics(CLI::App& app);
std::function<int()> declare_perf(CLI::App& app);
std::function<int()> declare_plan(CLI::App& app);
std::function<int()> declare_run(CLI::App& app);
std::function<int()> declare_trace(CLI::App& app);

}  // namespace shardwire::cli
