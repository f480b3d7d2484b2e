// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

namespace shardwire::test {

/// A control group below this process's own that limits its processes' memory. The destructor removes it once they have
/// ended.
class ControlGroup {
 public:
  /// Errors: throws std::runtime_error if no control group can be made.
  explicit ControlGroup(std::uint64_t limit_bytes) {
    const auto [parent, limit] = memory_group_of_this();
    folder_ = parent + "/shardwire" + std::to_string(::getpid());
    if (::mkdir(folder_.c_str(), 0755) != 0) throw std::runtime_error("no folder " + folder_);
    std::ofstream file(folder_ + "/" + limit);
    file << limit_bytes << std::flush;
    if (file) return;
    ::rmdir(folder_.c_str());
    throw std::runtime_error("no limit in " + folder_);
  }
  ~ControlGroup() { ::rmdir(folder_.c_str()); }
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  /// Shell commands that move the shell into the group.
  [[nodiscard]] std::string enter() const { return "echo $$ > " + folder_ + "/cgroup.procs || exit 97"; }

 private:
  struct Parent {
    std::string folder;
    std::string limit;
  };
  // Lines are number:controllers:path. If version 1 lists the memory controller, version 1 counts memory.
  static Parent memory_group_of_this() {
    Parent parent;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const std::size_t first = line.find(':') + 1;
      const std::size_t second = line.find(':', first);
      const std::string controllers = line.substr(first, second - first);
      if (controllers == "memory") return {"/sys/fs/cgroup/memory" + line.substr(second + 1), "memory.limit_in_bytes"};
      if (controllers.empty()) parent = {"/sys/fs/cgroup" + line.substr(second + 1), "memory.max"};
    }
    return parent;
  }

  std::string folder_;
};

}  // namespace shardwire::test
