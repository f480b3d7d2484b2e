// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/perf_options.hpp"
#include "cli/svg_text.hpp"
#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double plot_width = 760;
constexpr double plot_height = 420;
constexpr double left_margin = 70;
constexpr double top_margin = 50;
constexpr double right_margin = 130;  // for names of lines
constexpr double bottom_margin = 60;

struct PlotLine {
  std::string name;
  bool dashed = false;
  std::map<ByteCount, double> points;  // bytes per second by run length
};

// The method, or the pair of reader and source.
std::string name_of(const OrderedJson& row) {
  if (!row.contains("pairs")) return row["method"].get<std::string>();
  const OrderedJson& pairs = row["pairs"];
  if (pairs.size() > 1) return fmt::format("{} pairs, {} on", pairs.size(), pairs[0]["source"].get<std::string>());
  return fmt::format("{} <- {}", pairs[0]["target"].get<std::string>(), pairs[0]["source"].get<std::string>());
}

// Methods first, then their references.
std::vector<PlotLine> lines_of(const std::vector<OrderedJson>& rows) {
  std::vector<PlotLine> lines;
  const auto line = [&](const std::string& name, bool dashed) -> PlotLine& {
    const auto found = std::find_if(lines.begin(), lines.end(), [&](const PlotLine& l) { return l.name == name; });
    return found != lines.end() ? *found : lines.emplace_back(PlotLine{name, dashed, {}});
  };
  for (const OrderedJson& row : rows) {
    line(name_of(row), false).points[row["run_bytes"].get<ByteCount>()] = row["bytes_per_second"];
  }
  for (const OrderedJson& row : rows) {
    if (!row.contains("against") || row["method"] == "local") continue;
    for (const auto& [kind, one] : row["against"].items()) {
      const double seconds = one["seconds"];
      line(kind, true).points[row["run_bytes"].get<ByteCount>()] = row["bytes"]["needed"].get<double>() / seconds;
    }
  }
  // PlotLine rates of the ports, if known: of one port, if pairs are drawn.
  for (const OrderedJson& row : rows) {
    if (!row.contains("nics") || !row["nics"].contains("line_bytes_per_second")) continue;
    const double line_rate = row["nics"]["line_bytes_per_second"];
    const double ports = row.contains("pairs") ? 1 : row["nics"]["count"].get<double>();
    line("line rate", true).points[row["run_bytes"].get<ByteCount>()] = line_rate * ports;
  }
  return lines;
}

// A step of 1, 2 or 5 times a power of ten that yields about five steps.
double step_of(double most) {
  const double rough = most / 5;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

struct Axes {
  ByteCount shortest = 1;
  ByteCount longest = 2;
  double most = 1;

  [[nodiscard]] double x(ByteCount run) const {
    const double from = std::log2(static_cast<double>(shortest));
    const double span = std::max(1.0, std::log2(static_cast<double>(longest)) - from);
    return left_margin +
           (std::log2(static_cast<double>(run)) - from) / span * (plot_width - left_margin - right_margin);
  }
  [[nodiscard]] double y(double bytes_per_second) const {
    return top_margin + (1 - bytes_per_second / most) * (plot_height - top_margin - bottom_margin);
  }
};

Axes axes_of(const std::vector<PlotLine>& lines) {
  Axes axes;
  axes.shortest = lines.front().points.begin()->first;
  axes.longest = axes.shortest;
  for (const PlotLine& line : lines) {
    for (const auto& [run, speed] : line.points) {
      axes.shortest = std::min(axes.shortest, run);
      axes.longest = std::max(axes.longest, run);
      axes.most = std::max(axes.most, speed);
    }
  }
  const double step = step_of(axes.most);
  axes.most = std::ceil(axes.most / step) * step;
  return axes;
}

std::string draw_axes(const Axes& axes, const std::vector<ByteCount>& runs) {
  std::string out;
  const double step = step_of(axes.most);
  for (double value = 0; value <= axes.most * 1.001; value += step) {
    out += fmt::format(
        "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n<text x=\"{:.1f}\" "
        "y=\"{:.1f}\" text-anchor=\"end\">{:g}</text>\n",
        left_margin, axes.y(value), plot_width - right_margin, axes.y(value), left_margin - 8, axes.y(value) + 4,
        value * 1e-9);
  }
  for (const ByteCount run : runs) {
    out += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#999\"/>\n",
                       axes.x(run), plot_height - bottom_margin, plot_height - bottom_margin + 5);
    out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>\n", axes.x(run),
                       plot_height - bottom_margin + 20, exact_bytes(run));
  }
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">length of a run</text>\n",
                     (left_margin + plot_width - right_margin) / 2, plot_height - 16);
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">GB/s</text>\n", left_margin - 40, top_margin - 14);
  return out;
}

std::string draw_line(const Axes& axes, const PlotLine& line, const std::string& colour, double label_y) {
  std::string points;
  for (const auto& [run, speed] : line.points) points += fmt::format("{:.1f},{:.1f} ", axes.x(run), axes.y(speed));
  std::string out = fmt::format(
      "<polyline class=\"{}\" data-name=\"{}\" points=\"{}\" fill=\"none\" stroke=\"{}\" "
      "stroke-width=\"2\"{}/>\n",
      line.dashed ? "bound" : "method", xml_text(line.name), points, colour,
      line.dashed ? " stroke-dasharray=\"6 4\"" : "");
  for (const auto& [run, speed] : line.points) {
    if (line.dashed) break;
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {}, {}</title></circle>\n",
                       axes.x(run), axes.y(speed), colour, xml_text(line.name), exact_bytes(run), human_speed(speed));
  }
  const double x = plot_width - right_margin + 12;
  out += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", x,
      label_y - 4, x + 24, label_y - 4, colour, line.dashed ? " stroke-dasharray=\"6 4\"" : "");
  return out + fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 30, label_y, xml_text(line.name));
}

}  // namespace

std::string draw_rows(const std::vector<OrderedJson>& rows) {
  const std::vector<PlotLine> lines = lines_of(rows);
  const Axes axes = axes_of(lines);
  std::vector<ByteCount> runs;
  for (const PlotLine& line : lines) {
    for (const auto& [run, speed] : line.points) runs.push_back(run);
  }
  std::sort(runs.begin(), runs.end());
  runs.erase(std::unique(runs.begin(), runs.end()), runs.end());
  const OrderedJson& first = rows.front();
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#fff\"/>\n",
      plot_width, plot_height);
  const std::string title =
      fmt::format("{} between {} processes, {} in all; {}", first["versions"]["fabric"].get<std::string>(),
                  first["processes"].get<int>(), human_bytes(first["bytes"]["needed"].get<double>()),
                  first["machine"].get<std::string>());
  out += fmt::format("<text x=\"{:.1f}\" y=\"20\" font-weight=\"bold\">{}</text>\n", left_margin - 40, xml_text(title));
  out += draw_axes(axes, runs);
  double label_y = top_margin + 12;
  // Methods have colours, the copies that bound them do not.
  const auto methods =
      static_cast<int>(std::count_if(lines.begin(), lines.end(), [](const PlotLine& l) { return !l.dashed; }));
  int number = 0;
  int bounds = 0;
  for (const PlotLine& line : lines) {
    static constexpr const char* greys[] = {"#000", "#666", "#aaa"};
    const std::string colour = line.dashed ? greys[bounds++ % 3] : colour_of(number++, methods).hex();
    out += draw_line(axes, line, colour, label_y);
    label_y += 20;
  }
  return out + "</svg>\n";
}

}  // namespace shardwire::cli
