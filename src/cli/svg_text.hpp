// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace shardwire::cli {

/// Text for an XML element or attribute; characters that XML cannot represent become U+FFFD. At most `most` bytes and
/// "..".
std::string xml_text(std::string_view text, std::size_t most = 120);

struct Colour {
  int red = 0;
  int green = 0;
  int blue = 0;

  /// "#0072b2"
  [[nodiscard]] std::string hex() const;
  /// Black or white, whichever is readable on it.
  [[nodiscard]] const char* ink() const;
};

/// One of `count` colours that people with colour-vision deficiencies can distinguish: up to 8 distinct ones (Okabe and
/// Ito's), more from a scale with evenly increasing lightness.
Colour colour_of(int index, int count);

}  // namespace shardwire::cli
