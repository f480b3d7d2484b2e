// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::cli {

/// Bytes of one rank's link from or to other ranks; divided by sender if known.
struct LinkLoad {
  struct Segment {
    int source = 0;
    ByteCount bytes = 0;
  };
  ByteCount bytes = 0;
  std::vector<Segment> parts;  ///< may be empty; else their sum is `bytes`
};

/// One bar per rank, from left to right.
struct Bars {
  const char* kind = "";  ///< class of the elements
  std::string title;
  double x = 0;
  double y = 0;  ///< of the title
  double width = 0;
  double height = 0;                       ///< of the largest bar
  ByteCount full = 0;                      ///< bytes at this height
  ByteCount bound = 0;                     ///< marked by a line; 0: none
  std::function<std::string(int)> colour;  ///< of a source; a load without parts has the colour of its own rank
  std::vector<LinkLoad> loads;
};

/// Maximum number of ranks with a bar each; beyond that a bar shows the busiest of several.
inline constexpr std::size_t max_bars = 512;
/// Height of a drawing of bars, beyond that of its largest bar.
inline constexpr double bars_margin = 48;

std::string draw_bars(const Bars& bars);

}  // namespace shardwire::cli
