// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace shardwire {

inline constexpr std::uint32_t no_link = ~0U;

/// A flow, or `count` equal flows, over up to three links (the first always exists).
struct FluidFlow {
  std::array<std::uint32_t, 3> links{no_link, no_link, no_link};
  double bytes = 0;  ///< of each flow
  double start = 0;  ///< seconds
  std::uint32_t count = 1;
};

struct FluidResult {
  double seconds = 0;  ///< when the last flow ends
  std::size_t steps = 0;
};

/// Runs all flows at their max-min fair shares of links of the given speeds until they have ended. A flow that would
/// end less than `resolution` seconds after a change of shares releases its share only then.
/// Requires: speeds and bytes above 0.
FluidResult drain(const std::vector<double>& speeds, std::vector<FluidFlow> flows, double resolution);

}  // namespace shardwire
