// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace shardwire::perf {

/// Plain copies that bound what a restore on one host can reach.
/// The target is filled from the source, which is begun again where it is shorter. Requires: 16-byte aligned buffers.
struct PlainCopy {
  std::string name;
  void (*copy)(std::span<const std::byte> source, std::span<std::byte> target);
};

/// "memcpy", and "stream" (stores that go past the caches) where the processor has them.
const std::vector<PlainCopy>& plain_copies();

}  // namespace shardwire::perf
