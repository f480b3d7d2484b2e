// SPDX-License-Identifier: Apache-2.0
#include "cli/svg_text.hpp"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

constexpr std::string_view replacement = "\xEF\xBF\xBD";

constexpr Colour distinct[] = {{230, 159, 0}, {86, 180, 233}, {0, 158, 115},   {240, 228, 66},
                               {0, 114, 178}, {213, 94, 0},   {204, 121, 167}, {153, 153, 153}};
// Dark violet, blue, teal, green, yellow: each lighter than the one before.
constexpr Colour scale[] = {{52, 8, 86}, {56, 72, 140}, {33, 133, 141}, {78, 190, 102}, {252, 230, 60}};

}  // namespace

std::string xml_text(std::string_view text, std::size_t most) {
  // The JSON library validates UTF-8.
  const std::string valid = nlohmann::json::parse(json_text(text)).get<std::string>();
  std::string out;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const char c = valid[i];
    const bool begins_character = (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
    if (i >= most && begins_character) return out + "..";
    const std::string_view three = std::string_view(valid).substr(i, 3);
    if (three == "\xEF\xBF\xBE" || three == "\xEF\xBF\xBF") {
      out += replacement;
      i += 2;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += replacement;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Colour::hex() const {
  return fmt::format("#{:02x}{:02x}{:02x}", red, green, blue);
}

const char* Colour::ink() const {
  return 299 * red + 587 * green + 114 * blue > 135'000 ? "#000" : "#fff";
}

Colour colour_of(int index, int count) {
  if (count <= static_cast<int>(std::size(distinct))) return distinct[index];
  constexpr int spans = static_cast<int>(std::size(scale)) - 1;
  const double at = static_cast<double>(index) * spans / (count - 1);
  const int below = std::min(static_cast<int>(at), spans - 1);
  const auto mix = [&](int a, int b) { return static_cast<int>(std::lround(a + (b - a) * (at - below))); };
  const Colour& a = scale[below];
  const Colour& b = scale[below + 1];
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

}  // namespace shardwire::cli
