// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <set>
#include <string>

namespace shardwire::cli {

/// Shared memory files of a job's processes. A process that is ended by a signal leaves its own behind, and nobody else
/// would ever free them.
class SharedSegments {
 public:
  /// Remembers what the process has mapped now.
  void note(pid_t pid);
  /// Removes what is left. Requires: all processes noted have ended.
  void remove() const;

 private:
  std::set<std::string> paths_;
};

}  // namespace shardwire::cli
