// SPDX-License-Identifier: Apache-2.0
#include "case/case.hpp"
#include "cli/command.hpp"
#include "cli/output.hpp"

namespace shardwire::cli {

std::function<int()> declare_case(CLI::App& app) {
  app.add_flag("--schema")
      ->description("print the JSON Schema (draft 2020-12) of case files, for editors and other checkers")
      ->required();
  return [] {
    write_output(case_schema());
    return exit_done;
  };
}

}  // namespace shardwire::cli
