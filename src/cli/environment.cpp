// SPDX-License-Identifier: Apache-2.0
#include "cli/environment.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "cli/color.hpp"
#include "support/environment.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {

std::optional<std::string> environment(const char* name) {
  return support::variable(name);
}

void report_unknown_environment() {
  const std::string warning = support::unknown_variables_warning();
  if (!warning.empty()) {
    support::write_stderr("shardwire: {} {}\n", marked("warning:", Mark::warning, stderr), warning);
  }
}

}  // namespace shardwire::cli
