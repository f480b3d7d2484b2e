// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

namespace shardwire::support {

/// Whether this process has the capability, such as CAP_IPC_LOCK (linux/capability.h). `root`: prefix of /proc.
inline bool has_capability(unsigned number, const std::string& root = {}) {
  std::ifstream file(root + "/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("CapEff:")) return (std::strtoull(line.c_str() + 7, nullptr, 16) >> number & 1) != 0;
  }
  return false;
}

}  // namespace shardwire::support
