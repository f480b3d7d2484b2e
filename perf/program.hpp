// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace shardwire::perf {

/// The frame of a benchmark program: command line, errors and exit status.
class Program {
 public:
  /// `commit`: receives the value of --commit, which all programs have. Ownership: borrowed.
  Program(std::string name, const std::string& description, std::string& commit);

  [[nodiscard]] CLI::App& options() { return app_; }
  /// Parses the arguments and runs `body`, which checks its options first and throws CLI::Error if they do not fit.
  /// Returns the exit status: of `body`; 0 for --help; 1 after another exception; 2 for a wrong command line.
  int run(int argc, char** argv, const std::function<int()>& body);
  /// Prints to standard error after the program's name.
  void complain(const std::string& text) const;

 private:
  std::string name_;
  CLI::App app_;
};

/// Prints one JSON row to standard output.
void print_row(const nlohmann::ordered_json& row);

}  // namespace shardwire::perf
