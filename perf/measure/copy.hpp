// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardwire::perf {

/// Plain copies that bound the speed of a restore on one host. The target is filled from the source, which is repeated
/// if it is shorter. Requires: 16-byte aligned buffers.
struct PlainCopy {
  std::string name;
  void (*copy)(std::span<const std::byte> source, std::span<std::byte> target);
};

/// "memcpy", and "stream" (streaming stores) if the processor has them.
const std::vector<PlainCopy>& plain_copies();

}  // namespace shardwire::perf
