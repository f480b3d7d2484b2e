// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace shardwire::test {

/// A check for any thread: Boost.Test's own checks work on one thread only. Throws on failure.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

}  // namespace shardwire::test
