// SPDX-License-Identifier: Apache-2.0
#include "cli/command.hpp"

namespace shardwire::cli {

std::span<const Command> commands() {
  static constexpr Command table[] = {
      {"plan", "Show which rank sends what to whom, without moving anything", declare_plan},
  };
  return table;
}

}  // namespace shardwire::cli
