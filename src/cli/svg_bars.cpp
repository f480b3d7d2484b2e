// SPDX-License-Identifier: Apache-2.0
#include "cli/svg_bars.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/svg_text.hpp"
#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

// If there are too many ranks, a bar shows the busiest of several.
std::vector<LinkLoad> gathered(const std::vector<LinkLoad>& loads, std::size_t per_bar) {
  if (per_bar == 1) return loads;
  std::vector<LinkLoad> result;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    if (i % per_bar == 0) result.emplace_back();
    result.back().bytes = std::max(result.back().bytes, loads[i].bytes);
  }
  return result;
}

}  // namespace

std::string draw_bars(const Bars& bars) {
  fmt::memory_buffer out;
  const auto to = std::back_inserter(out);
  const std::size_t per_bar = (bars.loads.size() + max_bars - 1) / max_bars;
  const std::vector<LinkLoad> loads = gathered(bars.loads, std::max<std::size_t>(per_bar, 1));
  const double step = bars.width / static_cast<double>(std::max<std::size_t>(loads.size(), 1));
  const double width = step < 4 ? step : std::min(step * 0.8, 48.0);  // gaps that are too thin would dim the colours
  const double base = bars.y + 24 + bars.height;
  const double scale = bars.full == 0 ? 0 : bars.height / static_cast<double>(bars.full);
  const std::string note = per_bar > 1 ? fmt::format(" (busiest of {} per bar)", per_bar) : "";
  fmt::format_to(to, "<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"head\">{}{}</text>\n", bars.x, bars.y,
                 xml_text(bars.title), note);
  fmt::format_to(to, "<path d=\"M{:.2f} {:.2f}h{:.2f}\" class=\"axis\"/>\n", bars.x, base, bars.width);
  double labelled_to = -1;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const double x = bars.x + step * static_cast<double>(i) + (step - width) / 2;
    const LinkLoad whole_bar{loads[i].bytes, {{static_cast<int>(i * per_bar), loads[i].bytes}}};
    const bool plain = loads[i].parts.empty();
    double y = base;
    for (const LinkLoad::Segment& part : plain ? whole_bar.parts : loads[i].parts) {
      const double height = static_cast<double>(part.bytes) * scale;
      y -= height;
      if (part.bytes == 0) continue;
      fmt::format_to(to,
                     "<rect class=\"{}\" data-rank=\"{}\" data-bytes=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" "
                     "height=\"{:.2f}\" fill=\"{}\"/>\n",
                     bars.kind, i * per_bar, part.bytes, x, y, width, height, bars.colour(part.source));
    }
    if (x >= labelled_to) {
      const std::string rank = std::to_string(i * per_bar);
      fmt::format_to(to, "<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"tick\">{}</text>\n", x + width / 2, base + 13, rank);
      labelled_to = x + 8 + 7 * static_cast<double>(rank.size());
    }
    if (step >= 50) {
      fmt::format_to(to, "<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"tick\">{}</text>\n", x + width / 2,
                     base - static_cast<double>(loads[i].bytes) * scale - 3, human_bytes(loads[i].bytes));
    }
  }
  if (bars.bound > 0) {
    const double y = base - static_cast<double>(bars.bound) * scale;
    fmt::format_to(to, "<path d=\"M{:.2f} {:.2f}h{:.2f}\" class=\"bound\" data-bytes=\"{}\"/>\n", bars.x, y, bars.width,
                   bars.bound);
  }
  return fmt::to_string(out);
}

}  // namespace shardwire::cli
