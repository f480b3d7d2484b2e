// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace shardwire::cli {

/// Shared memory files of a job's processes. A process that is killed by a signal leaves its files behind, and nothing
/// else would free them.
class SharedSegments {
 public:
  /// Records the current mappings of the process.
  void note(pid_t pid);
  /// Removes the files that are left. Requires: all recorded processes have ended.
  void remove() const;

 private:
  std::set<std::string> paths_;
};

}  // namespace shardwire::cli
