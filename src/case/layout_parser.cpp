// SPDX-License-Identifier: Apache-2.0
#include "case/layout_parser.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "shardwire/error.hpp"
#include "support/nearest.hpp"

namespace shardwire {
namespace {

constexpr Extent any = std::numeric_limits<Extent>::max();

// Runs a factory of the library; its refusal becomes an error of the file.
template <typename Make>
Layout make(const Node& node, Make make_layout) {
  try {
    return make_layout();
  } catch (const Error& error) {
    node.refuse(error.what());
  }
}

int dim_of(const Node& node) {
  constexpr auto most = static_cast<Extent>(max_dims);
  return static_cast<int>(node.integer(-most, most - 1));
}

Rank rank_of(const Node& node) {
  return Rank{static_cast<std::int32_t>(node.integer(0, max_ranks - 1))};
}

// Removes one decimal number from the front of `text`.
std::optional<Extent> take_number(std::string_view& text, Extent least, Extent most) {
  Extent value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < least || value > most) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

Placement parse_placement(const Node& node) {
  const std::string whole = node.text();
  std::string_view text = whole;
  constexpr auto max_dim = static_cast<Extent>(max_dims);
  if (text == "R") return Replicate{};
  const bool strided = take(text, "SS(");
  if (strided || take(text, "S(")) {
    const auto dim = take_number(text, -max_dim, max_dim - 1);
    const auto factor = dim && strided && take(text, ",") ? take_number(text, 1, any) : std::nullopt;
    if (dim && text == ")") {
      if (!strided) return Shard{static_cast<int>(*dim)};
      if (factor) return StridedShard{static_cast<int>(*dim), *factor};
    }
  }
  const std::string shown = Json(whole.substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (whole.starts_with("P") || whole.starts_with("_P") || whole.starts_with("partial")) {
    node.refuse(
        fmt::format("{} is a partial sum, which no rank holds as values: reduce it before the state is moved, "
                    "then say R or S(d)",
                    shown));
  }
  node.refuse(fmt::format("{} is no placement; known are R, S(d), SS(d,sf) with d from {} to {} and sf from 1", shown,
                          -max_dim, max_dim - 1));
}

Layout parse_mesh(const Node& node) {
  node.require_fields({"mesh", "placements", "order", "ranks"});
  const Node mesh = node.at("mesh");
  std::vector<Extent> shape;
  Extent positions = 1;
  for (const Node& size : mesh.elements()) {
    shape.push_back(size.integer(1, max_ranks));
    positions *= shape.back();
    if (positions > max_ranks) size.refuse(fmt::format("the mesh has more than {} positions", max_ranks));
  }
  if (shape.empty()) mesh.refuse("a mesh has at least one dim");

  const Node list = node.at("placements");
  std::vector<Placement> placements;
  for (const Node& placement : list.elements()) placements.push_back(parse_placement(placement));
  if (placements.size() != shape.size()) {
    list.refuse(fmt::format("{} placements for {} mesh dims", placements.size(), shape.size()));
  }

  MeshOrder order = MeshOrder::mesh;
  if (const auto named = node.find("order")) {
    const std::string text = named->text();
    if (text != "mesh" && text != "tp_first") named->refuse_unknown("order", text, "mesh, tp_first");
    if (text == "tp_first") order = MeshOrder::tp_first;
  }

  std::vector<Rank> ranks;
  if (const auto listed = node.find("ranks")) {
    ranks = parse_ranks(*listed);
    if (static_cast<Extent>(ranks.size()) != positions) {
      listed->refuse(fmt::format("{} ranks for {} mesh positions", ranks.size(), positions));
    }
  }
  return make(node, [&] { return Layout::mesh(std::move(shape), std::move(placements), order, std::move(ranks)); });
}

// The optional field "ranks" of a layout that has no such list itself: its n-th rank is the n-th of the list.
Layout on_listed_ranks(const Node& node, Layout layout) {
  const auto listed = node.find("ranks");
  if (!listed) return layout;
  return make(*listed, [&] { return Layout::on_ranks(std::move(layout), parse_ranks(*listed)); });
}

Layout parse_chunk(const Node& node) {
  node.require_fields({"chunk", "over", "ranks"});
  const int dim = dim_of(node.at("chunk"));
  const int ranks = static_cast<int>(node.at("over").integer(1, max_ranks));
  return on_listed_ranks(node, make(node, [&] { return Layout::chunk(dim, ranks); }));
}

Layout parse_replicated(const Node& node) {
  node.require_fields({"replicated", "ranks"});
  const Node value = node.at("replicated");
  if (!value.boolean()) value.refuse("only true is valid; {\"boxes\": {}} means that no rank holds it");
  return on_listed_ranks(node, Layout::replicated());
}

Extents parse_extents(const Node& node, Extent least) {
  const std::vector<Node> numbers = node.elements();
  if (numbers.size() > max_dims)
    node.refuse(fmt::format("{} dims; at most {} are supported", numbers.size(), max_dims));
  std::vector<Extent> values;
  for (const Node& number : numbers) values.push_back(number.integer(least, any));
  return Extents(std::span<const Extent>(values));
}

Box parse_box(const Node& node) {
  const std::vector<Node> parts = node.elements();
  if (parts.size() != 2) node.refuse("a box is [[offsets], [sizes]]");
  const Box box{parse_extents(parts[0], 0), parse_extents(parts[1], 0)};
  if (box.offset.size() != box.size.size()) {
    node.refuse(fmt::format("{} offsets and {} sizes", box.offset.size(), box.size.size()));
  }
  return box;
}

Layout parse_boxes(const Node& node) {
  node.require_fields({"boxes"});
  std::map<Rank, std::vector<Box>> boxes;
  for (const auto& [text, list] : node.at("boxes").members()) {
    std::string_view rest = text;
    const auto rank = take_number(rest, 0, max_ranks - 1);
    if (!rank || std::to_string(*rank) != text) list.refuse("the key is no rank");
    std::vector<Box>& of_rank = boxes[Rank{static_cast<std::int32_t>(*rank)}];
    for (const Node& box : list.elements()) of_rank.push_back(parse_box(box));
  }
  return make(node.at("boxes"), [&] { return Layout::boxes(std::move(boxes)); });
}

std::vector<Extent> parse_numbers(const Node& node, Extent least) {
  std::vector<Extent> numbers;
  for (const Node& number : node.elements()) numbers.push_back(number.integer(least, any));
  return numbers;
}

Layout parse_block_cyclic(const Node& node) {
  node.require_fields({"blockcyclic", "ranks"});
  const Node inside = node.at("blockcyclic");
  inside.require_fields({"block", "grid", "source"});
  std::vector<Extent> block = parse_numbers(inside.at("block"), 1);
  std::vector<Extent> grid = parse_numbers(inside.at("grid"), 1);
  const auto listed = inside.find("source");
  // An empty list would select the default.
  if (listed && listed->elements().size() != grid.size()) {
    listed->refuse(fmt::format("{} first owners for {} dims", listed->elements().size(), grid.size()));
  }
  std::vector<Extent> source = listed ? parse_numbers(*listed, 0) : std::vector<Extent>();
  return on_listed_ranks(
      node, make(inside, [&] { return Layout::block_cyclic(std::move(block), std::move(grid), std::move(source)); }));
}

// The members of a flat layout are names of tensors, see FlatEntry.
Layout refuse_flat(const Node& node) {
  node.refuse("a flat layout cannot stand inside another one");
}

struct Kind {
  std::string_view keyword;
  Layout (*parse)(const Node& node);
};

// Another layout kind needs one function and one line here, and its fields in case.schema.json.
constexpr Kind kinds[] = {
    {"mesh", parse_mesh},
    {"chunk", parse_chunk},
    {"replicated", parse_replicated},
    {"boxes", parse_boxes},
    {"blockcyclic", parse_block_cyclic},
    {"flat", refuse_flat},
};

}  // namespace

std::vector<Rank> parse_ranks(const Node& list) {
  std::vector<Rank> ranks;
  for (const Node& rank : list.elements()) ranks.push_back(rank_of(rank));
  return ranks;
}

bool is_layout_keyword(std::string_view name) {
  for (const Kind& kind : kinds) {
    if (kind.keyword == name) return true;
  }
  return false;
}

bool names_layout(const Node& node) {
  return std::any_of(std::begin(kinds), std::end(kinds),
                     [&](const Kind& kind) { return node.has(std::string(kind.keyword).c_str()); });
}

void require_one_kind(const Node& node) {
  std::string_view named;
  for (const Kind& kind : kinds) {
    if (!node.has(std::string(kind.keyword).c_str())) continue;
    if (!named.empty()) node.refuse(fmt::format("both {} and {}: a layout is of one kind", named, kind.keyword));
    named = kind.keyword;
  }
  if (!named.empty()) return;
  std::vector<std::string_view> known;
  for (const Kind& kind : kinds) known.push_back(kind.keyword);
  std::string meant;
  for (const auto& [field, value] : node.members()) {
    const std::string nearest = support::suggestion(field, known);
    if (meant.empty() && !nearest.empty()) meant = fmt::format(": {} is none{}", quoted(field), nearest);
  }
  node.refuse(fmt::format("no layout{}; one of {} is expected", meant, fmt::join(known, ", ")));
}

Layout parse_layout(const Node& node) {
  node.require_object();
  require_one_kind(node);
  const auto* named = std::find_if(std::begin(kinds), std::end(kinds),
                                   [&](const Kind& kind) { return node.has(std::string(kind.keyword).c_str()); });
  return named->parse(node);
}

}  // namespace shardwire
