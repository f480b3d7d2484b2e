// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "shardwire/types.hpp"

namespace shardwire::transport::shm {

/// How much memory this process can still be given without somebody being killed for it.
struct MemoryLeft {
  ByteCount bytes = 0;
  std::string limit;  ///< for people: what allows no more
};

/// The least of what the host has available and what each control group that this process is in (v1 and v2) leaves of its
/// limit; pages that the kernel can drop count as left. What cannot be read limits nothing.
/// `root` is put before /proc and /sys, for tests.
MemoryLeft memory_left(const std::string& root = {});

}  // namespace shardwire::transport::shm
