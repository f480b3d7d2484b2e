// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "shardwire/costs.hpp"

namespace shardwire::perf {

/// The measured duration of a move of so many bytes in so many runs.
struct CostSample {
  ByteCount bytes = 0;
  ByteCount runs = 0;
  double seconds = 0;
};

/// The best-fitting cost by least squares of relative errors, so that short moves count as much as long ones; no part
/// of it is negative. Requires: at least one sample, all with bytes > 0 and seconds > 0.
MethodCost fit_cost(std::span<const CostSample> samples);

}  // namespace shardwire::perf
