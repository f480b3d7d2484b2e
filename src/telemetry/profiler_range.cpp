// SPDX-License-Identifier: Apache-2.0
#include "telemetry/profiler_range.hpp"

#include <utility>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#endif

namespace shardwire::telemetry {

namespace {

#if __has_include(<nvtx3/nvToolsExt.h>)
std::uint64_t show(const char* name) {
  static const bool ready = (nvtxInitialize(nullptr), true);  // it fills a table that it then reads without a lock
  return ready ? nvtxRangeStartA(name) : 0;
}

void hide(std::uint64_t number) {
  nvtxRangeEnd(number);
}
#else
std::uint64_t show(const char*) {
  return 0;
}

void hide(std::uint64_t) {}
#endif

}  // namespace

void ProfilerRange::begin(const char* name) {
  end();
  number_ = show(name);
}

void ProfilerRange::end() {
  if (const std::uint64_t number = std::exchange(number_, 0); number != 0) hide(number);
}

}  // namespace shardwire::telemetry
