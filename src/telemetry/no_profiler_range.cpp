// SPDX-License-Identifier: Apache-2.0
// ProfilerRange of builds without NVTX.
#include "telemetry/profiler_range.hpp"

namespace shardwire::telemetry {

void ProfilerRange::begin(const char*) {
}

void ProfilerRange::end() {
  number_ = 0;
}

}  // namespace shardwire::telemetry
