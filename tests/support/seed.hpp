// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

/// Seed of this run: TEST_SEED, else a new one; printed so that a failure can be reproduced.
inline std::uint64_t test_seed() {
  static const std::uint64_t seed = [] {
    const char* given = std::getenv("TEST_SEED");
    const std::uint64_t value = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::cout << "TEST_SEED=" << value << std::endl;
    return value;
  }();
  return seed;
}

/// TEST_SEED, else 0: of tests whose seeds are the same in each run.
inline std::uint64_t first_seed() {
  const char* given = std::getenv("TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 0;
}
