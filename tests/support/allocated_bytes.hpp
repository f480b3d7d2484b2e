// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shardwire::test {

/// Bytes that `operator new` has returned in this process, over all threads.
std::uint64_t allocated_bytes();

}  // namespace shardwire::test
