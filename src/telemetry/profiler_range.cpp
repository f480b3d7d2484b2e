// SPDX-License-Identifier: Apache-2.0
#include "telemetry/profiler_range.hpp"

#include <nvtx3/nvToolsExt.h>

#include <utility>

namespace shardwire::telemetry {

void ProfilerRange::begin(const char* name) {
  static const bool ready = (nvtxInitialize(nullptr), true);  // it fills a table that it then reads without a lock
  end();
  if (ready) number_ = nvtxRangeStartA(name);
}

void ProfilerRange::end() {
  if (const std::uint64_t number = std::exchange(number_, 0); number != 0) nvtxRangeEnd(number);
}

}  // namespace shardwire::telemetry
