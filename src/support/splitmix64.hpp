// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace shardwire::support {

/// Distance of the states of the generator splitmix64.
inline constexpr std::uint64_t splitmix64_step = 0x9e3779b97f4a7c15U;

/// The next number of the generator in this state, on host and device.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline std::uint64_t
    splitmix64(std::uint64_t value) {
  value += splitmix64_step;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

}  // namespace shardwire::support
