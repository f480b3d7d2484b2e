// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/tag_loop.hpp"

namespace shardwire::perf {

std::span<const TagStyle> tag_styles() {
  static const TagStyle styles[] = {{1u << 20, Idle::yield, "tag 1 MiB, yield"},
                                    {4u << 20, Idle::yield, "tag 4 MiB, yield"},
                                    {16u << 20, Idle::yield, "tag 16 MiB, yield"},
                                    {1u << 20, Idle::sleep, "tag 1 MiB, sleep"},
                                    {4u << 20, Idle::sleep, "tag 4 MiB, sleep"}};
  return styles;
}

}  // namespace shardwire::perf
