// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shardwire/types.hpp"

namespace shardwire::transport::shm {

/// How much more memory this process can use before the kernel kills a process for it.
struct MemoryLeft {
  ByteCount bytes = 0;
  std::string limit;  ///< for people: the limit that applies
};

/// The minimum of the host's available memory and what each control group of this process (v1 and v2) leaves of its
/// limit; pages that the kernel can drop count as available. Unreadable files impose no limit. `root` is a prefix for
/// /proc and /sys, for tests.
MemoryLeft memory_left(const std::string& root = {});

}  // namespace shardwire::transport::shm
