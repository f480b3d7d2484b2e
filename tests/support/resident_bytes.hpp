// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace shardwire::test {

/// This process's resident memory, including shared memory. Pages of programs and libraries do not count: code that
/// runs for the first time adds them, and a sanitizer makes them large.
inline std::size_t resident_bytes() {
  std::ifstream file("/proc/self/status");
  std::size_t kibibytes = 0;
  for (std::string word; file >> word;) {
    if (word != "RssAnon:" && word != "RssShmem:") continue;
    std::size_t part = 0;
    file >> part;
    kibibytes += part;
  }
  return kibibytes << 10;
}

}  // namespace shardwire::test
