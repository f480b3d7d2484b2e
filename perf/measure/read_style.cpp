// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/read_loop.hpp"

namespace shardwire::perf {

std::span<const ReadStyle> read_styles() {
  static const ReadStyle styles[] = {{Idle::yield, "64 reads, yield"}, {Idle::sleep, "64 reads, sleep"}};
  return styles;
}

}  // namespace shardwire::perf
