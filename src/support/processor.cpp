// SPDX-License-Identifier: Apache-2.0
#include "support/processor.hpp"

#include <fmt/core.h>

#include <fstream>

namespace shardwire::support {

std::string processor_model() {
  std::ifstream lines("/proc/cpuinfo");
  std::string maker;
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(": ");
    if (colon == std::string::npos) continue;
    std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    // 64-bit ARM reports numbers, no names.
    if (line.starts_with("CPU implementer")) maker = value;
    if (line.starts_with("CPU part")) return fmt::format("ARM processor {}, part {}", maker, value);
  }
  return {};
}

}  // namespace shardwire::support
