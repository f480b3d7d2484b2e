// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "cli/picture.hpp"

namespace shardwire::cli {

/// A self-contained SVG: holders on the left, targets on the right in the colour of their source, and below the bytes
/// that leave and reach each rank. Its size is bounded whatever the number of ranks and pieces: beyond a few thousand
/// boxes a side is drawn as cells.
std::string draw_svg(const Picture& picture);

}  // namespace shardwire::cli
