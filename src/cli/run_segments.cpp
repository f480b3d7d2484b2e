// SPDX-License-Identifier: Apache-2.0
#include "cli/run_segments.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <fstream>

namespace shardwire::cli {

void SharedSegments::note(pid_t pid) {
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  for (std::string line; std::getline(maps, line);) {
    const auto path = line.find("/dev/shm/ucx_shm_posix_");
    if (path == std::string::npos || line.ends_with(" (deleted)")) continue;
    paths_.insert(line.substr(path));
  }
}

void SharedSegments::remove() const {
  for (const std::string& path : paths_) ::unlink(path.c_str());
}

}  // namespace shardwire::cli
