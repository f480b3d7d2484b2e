// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace shardwire::cli {

/// Text for an XML element or attribute; what XML cannot hold becomes U+FFFD. At most `most` bytes and "..".
std::string xml_text(std::string_view text, std::size_t most = 120);

struct Colour {
  int red = 0;
  int green = 0;
  int blue = 0;

  /// "#0072b2"
  [[nodiscard]] std::string hex() const;
  /// Black or white, whichever can be read on it.
  [[nodiscard]] const char* ink() const;
};

/// One of `count` colours that people with colour-vision deficiencies can tell apart: up to 8 distinct ones (Okabe and
/// Ito's), more from a scale whose lightness rises evenly.
Colour colour_of(int index, int count);

}  // namespace shardwire::cli
