// SPDX-License-Identifier: Apache-2.0
#include "cli/plan_svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>

#include "cli/svg_bars.hpp"
#include "cli/svg_layers.hpp"
#include "cli/svg_text.hpp"
#include "cli/text.hpp"

namespace shardwire::cli {
namespace {

constexpr double panel_width = 470;
constexpr double panel_left = 30;
constexpr double panel_right = panel_left + panel_width + 60;
constexpr double picture_width = panel_right + panel_width + 30;
constexpr std::size_t max_layers = 4;     // drawn per side
constexpr std::size_t max_boxes = 4096;   // drawn one by one in a panel
constexpr std::size_t max_titles = 1500;  // texts for the mouse
constexpr Extent max_cells = 96;          // per dim, if there are more boxes
constexpr std::size_t max_parts = 4096;   // of bars
constexpr std::size_t max_swatches = 12;
constexpr double letter_width = 6.8;

struct Area {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

// The two visible dims of the tensor, and the index of each other dim.
class View {
 public:
  explicit View(const Picture& picture) : shape_(picture.spec.shape) {
    std::vector<std::size_t> order;
    const auto is_split = [&](std::size_t dim) {
      const auto part = [&](const auto& one) { return one.first.size[dim] != shape_[dim]; };
      return std::any_of(picture.held.begin(), picture.held.end(), part) ||
             std::any_of(picture.wanted.begin(), picture.wanted.end(), part);
    };
    for (const bool wanted : {true, false}) {
      for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
        if (shape_.size() == 2 ? wanted : is_split(dim) == wanted) order.push_back(dim);
      }
    }
    order.resize(std::min<std::size_t>(order.size(), 2));
    std::sort(order.begin(), order.end());
    if (order.size() == 2) row_ = order[0];
    column_ = order.back();
  }

  [[nodiscard]] Extent rows() const { return row_ ? shape_[*row_] : 1; }
  [[nodiscard]] Extent columns() const { return shape_[column_]; }
  // The part of a panel that a box covers; empty if it lies outside the slice.
  [[nodiscard]] std::optional<Box> flat(const Box& box) const {
    for (std::size_t dim = 0; dim < box.dims(); ++dim) {
      if (dim != column_ && dim != row_ && box.lower(dim) > 0) return std::nullopt;
    }
    return Box{{row_ ? box.lower(*row_) : 0, box.lower(column_)}, {row_ ? box.size[*row_] : 1, box.size[column_]}};
  }
  [[nodiscard]] Area area(const Box& flat, const Area& panel) const {
    const double x = panel.width / static_cast<double>(columns());
    const double y = panel.height / static_cast<double>(rows());
    return {panel.x + x * static_cast<double>(flat.lower(1)), panel.y + y * static_cast<double>(flat.lower(0)),
            x * static_cast<double>(flat.size[1]), y * static_cast<double>(flat.size[0])};
  }
  [[nodiscard]] std::string text() const {
    if (!row_) return fmt::format("dim 0 runs to the right");
    std::string at;
    for (std::size_t dim = 0; dim < shape_.size(); ++dim) {
      if (dim != *row_ && dim != column_) at += fmt::format(", dim {} at index 0", dim);
    }
    return fmt::format("dim {} runs down, dim {} to the right{}", *row_, column_, at);
  }
  [[nodiscard]] double height(std::size_t layers) const {
    if (!row_) return 90;
    const double natural = panel_width * static_cast<double>(rows()) / static_cast<double>(columns());
    const double most = layers == 1 ? 440 : layers == 2 ? 280 : 190;
    return std::clamp(natural, layers == 1 ? 300.0 : 150.0, most);
  }

 private:
  const Extents& shape_;
  std::optional<std::size_t> row_;
  std::size_t column_ = 0;
};

// A box to be filled: its text and the rank whose colour it has.
struct Fill {
  Box flat;
  Rank source{};
  Rank target{};
  bool local = false;
  ByteCount bytes = 0;
};

class Drawer {
 public:
  explicit Drawer(const Picture& picture) : picture_(picture), view_(picture) {
    for (const auto& [box, rank] : picture.held) holders_.push_back(to_int(rank));
    std::sort(holders_.begin(), holders_.end());
    holders_.erase(std::unique(holders_.begin(), holders_.end()), holders_.end());
  }

  std::string run() {
    heading();
    legend();
    const double top = y_;
    const double left_end = source_side();
    y_ = top;
    y_ = std::max(left_end, target_side()) + 24;
    loads();
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\">\n"
        "<style>.title{{font-size:18px;font-weight:bold}}.head{{font-weight:bold}}.note{{fill:#444}}"
        ".tick{{font-size:10px;text-anchor:middle}}.mid{{text-anchor:middle;dominant-baseline:central;font-size:11px}}"
        ".corner{{font-size:11px;font-weight:bold}}.plate{{fill:#fff;fill-opacity:0.8}}"
        "rect{{shape-rendering:crispEdges}}.held,.piece{{stroke:#fff;stroke-width:0.6}}.wanted{{fill:none;stroke:#000;"
        "stroke-width:1.6}}"
        ".frame{{fill:#f4f4f4;stroke:#999}}.stays{{fill:url(#hatch)}}.axis{{stroke:#000;fill:none}}"
        ".bound{{stroke:#c00;stroke-dasharray:6 4;fill:none}}</style>\n"
        "<defs><pattern id=\"hatch\" width=\"7\" height=\"7\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"7\" fill=\"#fff\" fill-opacity=\"0.55\"/></pattern>"
        "<linearGradient id=\"scale\">{2}</linearGradient></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{3}</svg>\n",
        picture_width, y_ + 10, gradient(), fmt::to_string(out_));
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }
  void text(double x, double y, const char* kind, const std::string& words) {
    put("<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"{}\">{}</text>\n", x, y, kind, words);
  }
  // Only ranks that hold a part have a colour: usually those of one pipeline stage.
  [[nodiscard]] Colour colour(std::int32_t source) const {
    const auto place = std::lower_bound(holders_.begin(), holders_.end(), source);
    if (place == holders_.end() || *place != source) return {136, 136, 136};
    return colour_of(static_cast<int>(place - holders_.begin()), static_cast<int>(holders_.size()));
  }
  [[nodiscard]] Colour colour(Rank source) const { return colour(to_int(source)); }

  void heading() {
    const TensorSpec& spec = picture_.spec;
    text(panel_left, 32, "title", xml_text(to_string(spec.key), 100));
    ByteCount bytes = 0;
    std::size_t outside = 0;
    for (const PicturePiece& piece : picture_.pieces) {
      bytes += piece.bytes;
      outside += view_.flat(piece.box) ? 0 : 1;
    }
    text(panel_left, 52, "note",
         fmt::format(
             "{}{} {}, {} wanted; {}{}{}", picture_.job.empty() ? "" : xml_text(picture_.job) + ": ",
             to_string(spec.dtype), to_string(spec.shape), human_bytes(bytes), view_.text(),
             outside == 0 ? "" : fmt::format(" ({} of {} pieces are elsewhere)", outside, picture_.pieces.size()),
             picture_.relabelled ? "; target ranks in the best processes" : ""));
    y_ = 74;
  }

  [[nodiscard]] std::string gradient() const {
    std::string stops;
    for (int i = 0; i <= 16; ++i) {
      stops += fmt::format("<stop offset=\"{:.4f}\" stop-color=\"{}\"/>", i / 16.0, colour_of(i, 17).hex());
    }
    return stops;
  }

  void legend() {
    double x = panel_left;
    text(x, y_ + 10, "head", "source rank");
    x += 92;
    if (holders_.size() <= max_swatches) {
      for (const std::int32_t rank : holders_) {
        const std::string number = std::to_string(rank);
        put("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"13\" height=\"13\" fill=\"{}\"/>", x, y_, colour(rank).hex());
        text(x + 17, y_ + 10, "note", number);
        x += 24 + letter_width * static_cast<double>(number.size());
      }
    } else {
      const std::string first = std::to_string(holders_.front());
      text(x, y_ + 10, "note", first);
      x += 6 + letter_width * static_cast<double>(first.size());
      put("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"280\" height=\"13\" fill=\"url(#scale)\"/>", x, y_);
      text(x + 286, y_ + 10, "note", std::to_string(holders_.back()));
    }
    x = panel_right;
    put("<rect x=\"{0:.2f}\" y=\"{1:.2f}\" width=\"22\" height=\"13\" fill=\"#777\"/>"
        "<rect x=\"{0:.2f}\" y=\"{1:.2f}\" width=\"22\" height=\"13\" class=\"stays\"/>",
        x, y_);
    text(x + 28, y_ + 10, "note", "stays in its process");
    put("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"22\" height=\"13\" class=\"wanted\"/>", x + 170, y_);
    text(x + 198, y_ + 10, "note", "box of one target rank");
    y_ += 44;
  }

  void side_heading(double x, const char* side, int ranks, const std::string& layout) {
    text(x, y_, "head", fmt::format("{}: {} rank{}", side, ranks, ranks == 1 ? "" : "s"));
    text(x, y_ + 16, "note", xml_text(layout, 72));
    y_ += 26;
  }

  // Calls `draw` with the area of each drawn layer, and writes the ranks that it shows.
  template <typename Draw>
  void each_layer(double x, const Layers& layers, const std::vector<std::pair<Box, Rank>>& boxes, Draw draw) {
    const std::size_t shown = std::min(layers.count, max_layers);
    for (std::size_t layer = 0; layer < shown; ++layer) {
      if (layers.count > 1) {
        text(x, y_ + 10, "note",
             fmt::format("copy {} of {}: ranks {}", layer + 1, layers.count, members(layers, boxes, layer)));
        y_ += 16;
      }
      const Area area{x, y_, panel_width, view_.height(shown)};
      put("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" class=\"frame\"/>\n", area.x, area.y,
          area.width, area.height);
      draw(layer, area);
      y_ += area.height + 10;
    }
    if (layers.count > shown) {
      text(x, y_ + 10, "note", fmt::format("{} copies more are not drawn", layers.count - shown));
      y_ += 16;
    }
    if (layers.overlap) {
      text(x, y_ + 10, "note", "boxes of different ranks overlap; later ones lie on top");
      y_ += 16;
    }
  }

  // "0-3, 8"
  static std::string members(const Layers& layers, const std::vector<std::pair<Box, Rank>>& boxes, std::size_t layer) {
    std::vector<bool> there(layers.of_rank.size());
    for (const auto& [box, rank] : boxes) there[static_cast<std::size_t>(to_int(rank))] = true;
    std::string result;
    for (std::size_t rank = 0; rank < there.size(); ++rank) {
      const auto in = [&](std::size_t r) { return r < there.size() && there[r] && layers.of_rank[r] == layer; };
      if (!in(rank)) continue;
      const std::size_t first = rank;
      while (in(rank + 1)) ++rank;
      if (result.size() > 50) return result + ", ..";
      result += (result.empty() ? "" : ", ") + std::to_string(first);
      if (rank > first) result += fmt::format("-{}", rank);
    }
    return result;
  }

  double source_side() {
    side_heading(panel_left, "source", picture_.source_ranks, picture_.source_layout);
    const Layers layers = layers_of(picture_.held, picture_.source_ranks);
    each_layer(panel_left, layers, picture_.held, [&](std::size_t layer, const Area& area) {
      std::vector<Fill> fills;
      for (const auto& [box, rank] : picture_.held) {
        if (layers.of_rank[static_cast<std::size_t>(to_int(rank))] != layer) continue;
        if (const auto flat = view_.flat(box)) fills.push_back({*flat, rank, rank, false, 0});
      }
      fill(fills, area, "held");
    });
    return y_;
  }

  double target_side() {
    side_heading(panel_right, "target", picture_.target_ranks, picture_.target_layout);
    const Layers layers = layers_of(picture_.wanted, picture_.target_ranks);
    each_layer(panel_right, layers, picture_.wanted, [&](std::size_t layer, const Area& area) {
      const auto here = [&](Rank rank) { return layers.of_rank[static_cast<std::size_t>(to_int(rank))] == layer; };
      std::vector<Fill> fills;
      for (const PicturePiece& piece : picture_.pieces) {
        if (!here(piece.target)) continue;
        const auto flat = view_.flat(piece.box);
        if (flat)
          fills.push_back(
              {*flat, piece.source, piece.target, picture_.is_local(piece.source, piece.target), piece.bytes});
      }
      fill(fills, area, "piece");
      std::vector<Fill> outlines;
      for (const auto& [box, rank] : picture_.wanted) {
        if (!here(rank)) continue;
        if (const auto flat = view_.flat(box)) outlines.push_back({*flat, rank, rank, false, 0});
      }
      if (outlines.size() <= max_boxes / 2) outline(outlines, area);
    });
    return y_;
  }

  void fill(const std::vector<Fill>& fills, const Area& panel, const char* kind) {
    if (fills.size() > max_boxes) return fill_cells(fills, panel);
    const bool held = std::string_view(kind) == "held";
    for (const Fill& one : fills) {
      const Area area = view_.area(one.flat, panel);
      put("<rect class=\"{}\" data-source=\"{}\"", kind, to_int(one.source));
      if (!held) put(" data-target=\"{}\" data-bytes=\"{}\"", to_int(one.target), one.bytes);
      put(" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"", area.x, area.y, area.width,
          area.height, colour(one.source).hex());
      if (std::min(area.width, area.height) < 4) put(" stroke-opacity=\"0\"");
      if (fills.size() <= max_titles) {
        put("><title>{}</title></rect>\n",
            held ? fmt::format("source rank {}", to_int(one.source))
                 : fmt::format("source rank {} -&gt; target rank {}: {}", to_int(one.source), to_int(one.target),
                               human_bytes(one.bytes)));
      } else {
        put("/>\n");
      }
      if (one.local) {
        put("<rect class=\"stays\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\"/>\n", area.x, area.y,
            area.width, area.height);
      }
    }
    for (const Fill& one : fills) {
      const Area area = view_.area(one.flat, panel);
      const std::string label = std::to_string(to_int(one.source));
      if (area.width < 6 + 7 * static_cast<double>(label.size()) || area.height < 13) continue;
      // A low box has no room above it for the name of the target rank.
      const bool aside = !held && area.height < 40 && area.width > 60;
      put("<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"mid\" fill=\"{}\">{}</text>\n",
          aside ? area.x + area.width - 4 - 4 * static_cast<double>(label.size()) : area.x + area.width / 2,
          area.y + area.height / 2, colour(one.source).ink(), label);
    }
  }

  // Too many boxes to see: a grid of cells, each in the colour of the element in its middle.
  void fill_cells(const std::vector<Fill>& fills, const Area& panel) {
    const Extent rows = std::min(max_cells, view_.rows());
    const Extent columns = std::min(max_cells, view_.columns());
    std::vector<std::int32_t> source(static_cast<std::size_t>(rows * columns), -1);
    // Cells whose middle element lies in [lower, upper).
    const auto cells = [](Extent lower, Extent upper, Extent extent, Extent count) {
      const auto first_at = [&](Extent element) {
        const double cell =
            (static_cast<double>(element) + 0.5) * static_cast<double>(count) / static_cast<double>(extent);
        return std::clamp<Extent>(static_cast<Extent>(std::ceil(cell - 0.5 - 1e-9)), 0, count);
      };
      return std::pair(first_at(lower), first_at(upper));
    };
    for (const Fill& one : fills) {
      const auto [top, bottom] = cells(one.flat.lower(0), one.flat.upper(0), view_.rows(), rows);
      const auto [first, last] = cells(one.flat.lower(1), one.flat.upper(1), view_.columns(), columns);
      for (Extent row = top; row < bottom; ++row) {
        const auto begin = source.begin() + static_cast<std::ptrdiff_t>(row * columns);
        std::fill(begin + static_cast<std::ptrdiff_t>(first), begin + static_cast<std::ptrdiff_t>(last),
                  to_int(one.source));
      }
    }
    const double width = panel.width / static_cast<double>(columns);
    const double height = panel.height / static_cast<double>(rows);
    for (Extent row = 0; row < rows; ++row) {
      for (Extent column = 0; column < columns;) {
        const std::int32_t rank = source[static_cast<std::size_t>(row * columns + column)];
        Extent end = column + 1;
        while (end < columns && source[static_cast<std::size_t>(row * columns + end)] == rank) ++end;
        if (rank >= 0) {
          put("<rect class=\"cell\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"/>\n",
              panel.x + width * static_cast<double>(column), panel.y + height * static_cast<double>(row),
              width * static_cast<double>(end - column), height, colour(Rank{rank}).hex());
        }
        column = end;
      }
    }
    text(panel.x, panel.y + panel.height + 13, "note",
         fmt::format("{} boxes, drawn as {} x {} cells in the colour of their middle element", fills.size(), rows,
                     columns));
    y_ += 16;
  }

  void outline(const std::vector<Fill>& outlines, const Area& panel) {
    for (const Fill& one : outlines) {
      const Area area = view_.area(one.flat, panel);
      if (std::min(area.width, area.height) < 3) continue;  // only lines would be visible
      const double stroke = std::min({1.6, area.width / 6, area.height / 6});
      put("<rect class=\"wanted\" data-target=\"{}\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "style=\"stroke-width:{:.2f}\"/>\n",
          to_int(one.target), area.x, area.y, area.width, area.height, stroke);
      const std::string label = label_of(one.target, area.width - 8);
      if (area.height < 17 || label.empty()) continue;
      put("<rect class=\"plate\" x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"13\"/>\n", area.x + 2, area.y + 2,
          letter_width * static_cast<double>(label.size()) + 5);
      text(area.x + 4, area.y + 12, "corner", label);
    }
  }

  // The longest text that fits.
  [[nodiscard]] std::string label_of(Rank target, double room) const {
    const std::string number = std::to_string(to_int(target));
    const std::int32_t process = picture_.processes[static_cast<std::size_t>(to_int(target))];
    std::vector<std::string> texts = {"rank " + number, number};
    if (picture_.relabelled) texts.insert(texts.begin(), fmt::format("rank {} in process {}", number, process));
    for (const std::string& one : texts) {
      if (letter_width * static_cast<double>(one.size()) <= room) return one;
    }
    return {};
  }

  void loads() {
    std::vector<Flow> flows;
    ByteCount bytes = 0;
    for (const PicturePiece& piece : picture_.pieces) {
      flows.push_back({piece.source, piece.target, piece.bytes});
      bytes += piece.bytes;
    }
    loads_of("this tensor", flows, "");
    if (picture_.job_bytes > bytes) loads_of("all tensors", picture_.job_flows, "job_");
  }

  void loads_of(const char* what, const std::vector<Flow>& flows, const std::string& prefix) {
    const auto colours = [this](int source) { return colour(source).hex(); };
    Bars out{"", "", panel_left, y_, panel_width, 110, 0, 0, colours, {}};
    Bars in{"", "", panel_right, y_, panel_width, 110, 0, 0, colours, {}};
    out.loads.resize(static_cast<std::size_t>(picture_.source_ranks));
    in.loads.resize(static_cast<std::size_t>(picture_.target_ranks));
    std::vector<bool> gives(out.loads.size());
    std::map<std::pair<Rank, Rank>, ByteCount> parts;
    ByteCount remote = 0;
    for (const Flow& flow : flows) {
      const auto source = static_cast<std::size_t>(to_int(flow.source));
      gives[source] = true;
      if (picture_.is_local(flow.source, flow.target)) continue;
      out.loads[source].bytes += flow.bytes;
      in.loads[static_cast<std::size_t>(to_int(flow.target))].bytes += flow.bytes;
      parts[{flow.target, flow.source}] += flow.bytes;
      remote += flow.bytes;
    }
    if (parts.size() <= max_parts && in.loads.size() <= max_bars) {
      for (const auto& [pair, bytes] : parts) {
        in.loads[static_cast<std::size_t>(to_int(pair.first))].parts.push_back({to_int(pair.second), bytes});
      }
    } else {
      in.colour = [](int) { return std::string("#888"); };
    }
    const auto most = [](const std::vector<LinkLoad>& loads) {
      ByteCount largest = 0;
      for (const LinkLoad& load : loads) largest = std::max(largest, load.bytes);
      return largest;
    };
    const auto givers = static_cast<ByteCount>(std::count(gives.begin(), gives.end(), true));
    const ByteCount largest_in = most(in.loads);
    const ByteCount bound = std::max(largest_in, givers == 0 ? 0 : (remote + givers - 1) / givers);
    const ByteCount full = std::max(most(out.loads), bound);
    out.full = in.full = full;
    out.bound = in.bound = bound;
    const std::string kind_out = prefix + "egress";
    const std::string kind_in = prefix + "ingress";
    out.kind = kind_out.c_str();
    in.kind = kind_in.c_str();
    out.title = fmt::format("{}: out of source ranks, most {}", what, human_bytes(most(out.loads)));
    in.title = fmt::format("{}: into target ranks, most {}", what, human_bytes(largest_in));
    const std::string bound_text = fmt::format(
        "{} between processes. Dashed: {}, the largest link load is at least that (busiest target, or mean over the "
        "sources)",
        human_bytes(remote), human_bytes(bound));
    text(panel_left, y_, "note", remote == 0 ? fmt::format("{}: everything stays in its process", what) : bound_text);
    if (remote == 0) {
      y_ += 24;
      return;
    }
    out.y = in.y = y_ + 20;
    put("{}{}", draw_bars(out), draw_bars(in));
    y_ += 20 + out.height + bars_margin + 14;
  }

  const Picture& picture_;
  std::vector<std::int32_t> holders_;  // ascending
  View view_;
  fmt::memory_buffer out_;
  double y_ = 0;
};

}  // namespace

std::string draw_svg(const Picture& picture) {
  return Drawer(picture).run();
}

}  // namespace shardwire::cli
