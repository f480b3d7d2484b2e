// SPDX-License-Identifier: Apache-2.0
// `shardwire plan --svg`: a picture that is well-formed and complete, with the right colours.
#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "support/command.hpp"

BOOST_AUTO_TEST_SUITE(svg)

namespace {

using namespace shardwire::test;
using Json = nlohmann::json;
using Words = std::vector<std::string>;

struct Rect {
  std::map<std::string, std::string> attributes;

  [[nodiscard]] double number(const char* name) const { return std::stod(attributes.at(name)); }
  [[nodiscard]] std::uint64_t count(const char* name) const { return std::stoull(attributes.at(name)); }
  [[nodiscard]] double area() const { return number("width") * number("height"); }
};

struct Svg {
  std::size_t size = 0;
  std::string text;                                // all words, one text element a line
  std::map<std::string, std::vector<Rect>> rects;  // by class

  [[nodiscard]] const std::vector<Rect>& of(const std::string& kind) { return rects[kind]; }
  [[nodiscard]] std::uint64_t sum(const std::string& kind) {
    std::uint64_t bytes = 0;
    for (const Rect& rect : of(kind)) bytes += rect.count("data-bytes");
    return bytes;
  }
  [[nodiscard]] bool says(const std::string& words) const { return text.find(words) != std::string::npos; }
};

void collect(const boost::property_tree::ptree& tree, Svg& svg) {
  for (const auto& [name, child] : tree) {
    if (name == "rect") {
      Rect rect;
      for (const auto& [key, value] : child.get_child("<xmlattr>")) rect.attributes[key] = value.data();
      const auto kind = rect.attributes.find("class");
      svg.rects[kind == rect.attributes.end() ? "" : kind->second].push_back(rect);
    }
    if (name == "text") svg.text += child.data() + "\n";
    collect(child, svg);
  }
}

std::string svg_path() {
  return "svg_test." + std::to_string(::getpid()) + ".svg";
}

CommandResult plan(Words words, const std::string& text) {
  words.insert(words.begin(), "plan");
  words.emplace_back("-");
  return run_command(std::move(words), text);
}

Svg draw(const std::string& text, const std::string& tensor, Words more = {}) {
  const std::string path = svg_path();
  std::remove(path.c_str());
  Words words = {"--totals", "--svg", path, "--tensor", tensor};
  words.insert(words.end(), more.begin(), more.end());
  const CommandResult result = plan(words, text);
  BOOST_REQUIRE_MESSAGE(result.exit_code == 0, result.err);
  std::ifstream file(path);
  std::stringstream content;
  content << file.rdbuf();
  std::remove(path.c_str());
  Svg svg;
  svg.size = content.str().size();
  boost::property_tree::ptree tree;
  boost::property_tree::read_xml(content, tree);  // throws unless all is closed and quoted
  BOOST_TEST(tree.count("svg") == 1U);
  collect(tree, svg);
  return svg;
}

std::string text_of(const std::string& tensors, const std::string& source, const std::string& target) {
  return R"j({"name": "a <b> & c", "states": ["m", "v"], "tensors": [)j" + tensors + R"j(], "source": )j" + source +
         R"j(, "target": )j" + target + "}";
}

const char* const w = R"j({"fqn": "layers.0.w", "shape": [64, 48]})j";
const char* const fsdp4 = R"j({"ranks": 4, "rules": {"*": {"chunk": 0, "over": 4}}})j";
const char* const two_by_two = R"j({"ranks": 4, "rules": {"*": {"mesh": [2, 2], "placements": ["S(0)", "S(1)"]}}})j";
const char* const hsdp = R"j({"ranks": 4, "rules": {"*": {"mesh": [2, 2], "placements": ["R", "S(0)"]}}})j";

// Colour of each source rank, as drawn on the source side.
std::map<std::string, std::string> colours_of(Svg& svg) {
  std::map<std::string, std::string> colours;
  for (const Rect& rect : svg.of("held")) {
    const auto [entry, fresh] = colours.emplace(rect.attributes.at("data-source"), rect.attributes.at("fill"));
    BOOST_TEST(entry->second == rect.attributes.at("fill"));
  }
  std::set<std::string> distinct;
  for (const auto& [rank, colour] : colours) distinct.insert(colour);
  BOOST_TEST(distinct.size() == colours.size());
  return colours;
}

// Every piece of the plan is one rectangle in its source's colour, with an area proportional to its bytes.
void check_pieces(Svg& svg, const std::string& text, const std::string& fqn) {
  const Json json = Json::parse(plan({"--json"}, text).out);
  std::multiset<std::tuple<int, int, std::uint64_t>> planned;
  std::uint64_t bytes = 0;
  std::uint64_t remote = 0;
  for (const Json& piece : json["pieces"]) {
    if (piece["fqn"] != fqn || piece["state"] != "m") continue;
    planned.emplace(piece["src"].get<int>(), piece["dst"].get<int>(), piece["bytes"].get<std::uint64_t>());
    bytes += piece["bytes"].get<std::uint64_t>();
    remote += piece["src"] == piece["dst"] ? 0 : piece["bytes"].get<std::uint64_t>();
  }
  auto colours = colours_of(svg);
  std::multiset<std::tuple<int, int, std::uint64_t>> drawn;
  double area = 0;
  for (const Rect& rect : svg.of("piece")) area += rect.area();
  for (const Rect& rect : svg.of("piece")) {
    drawn.emplace(static_cast<int>(rect.count("data-source")), static_cast<int>(rect.count("data-target")),
                  rect.count("data-bytes"));
    BOOST_TEST(rect.attributes.at("fill") == colours[rect.attributes.at("data-source")]);
    BOOST_TEST(std::abs(rect.area() / area - rect.number("data-bytes") / static_cast<double>(bytes)) < 1e-3);
  }
  BOOST_TEST((drawn == planned));
  BOOST_TEST(svg.sum("egress") == remote);
  BOOST_TEST(svg.sum("ingress") == remote);
  for (const Rect& rect : svg.of("egress")) {
    BOOST_TEST(rect.attributes.at("fill") == colours[rect.attributes.at("data-rank")]);
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(each_piece_is_one_rectangle_in_the_colour_of_its_source) {
  const std::string text = text_of(w, fsdp4, two_by_two);
  Svg svg = draw(text, "layers.0.w");
  BOOST_TEST(svg.of("held").size() == 4U);
  BOOST_TEST(svg.of("wanted").size() == 5U);  // one in the legend
  BOOST_TEST(svg.of("piece").size() == 8U);
  BOOST_TEST(svg.of("stays").size() == 5U);
  check_pieces(svg, text, "layers.0.w");
  BOOST_TEST(svg.says("layers.0.w:m"));
  BOOST_TEST(svg.says("rank 3"));
  BOOST_TEST(svg.says("mesh (2, 2) [S(0), S(1)]"));
  // The other state has the same size.
  BOOST_TEST(svg.sum("job_egress") == 2 * svg.sum("egress"));
}

BOOST_AUTO_TEST_CASE(replicas_are_drawn_as_copies) {
  const std::string text = text_of(w, fsdp4, hsdp);
  Svg svg = draw(text, "layers.0.w:m");
  BOOST_TEST(svg.of("piece").size() == 8U);
  BOOST_TEST(svg.says("copy 2 of 2: ranks 2-3"));
  check_pieces(svg, text, "layers.0.w");
  // Replicated sources, of which the plan of the whole job chooses.
  const std::string back = text_of(w, hsdp, two_by_two);
  Svg from_replicas = draw(back, "layers.0.w:m");
  BOOST_TEST(from_replicas.of("held").size() == 4U);
  check_pieces(from_replicas, back, "layers.0.w");
}

BOOST_AUTO_TEST_CASE(vectors_and_tensors_of_many_dims_are_drawn) {
  const std::string vector =
      text_of(R"j({"fqn": "b", "shape": [40]})j", fsdp4, R"j({"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}})j");
  Svg flat = draw(vector, "b");
  BOOST_TEST(flat.says("dim 0 runs to the right"));
  check_pieces(flat, vector, "b");
  const std::string cube =
      text_of(R"j({"fqn": "c", "shape": [6, 8, 12]})j", R"j({"ranks": 4, "rules": {"*": {"chunk": 2, "over": 4}}})j",
              R"j({"ranks": 4, "rules": {"*": {"chunk": 1, "over": 4}}})j");
  Svg slice = draw(cube, "c");
  BOOST_TEST(slice.says("dim 1 runs down, dim 2 to the right, dim 0 at index 0"));
  check_pieces(slice, cube, "c");
  // Pieces outside of the drawn part are counted.
  const std::string deep =
      text_of(R"j({"fqn": "c", "shape": [6, 8, 12]})j",
              R"j({"ranks": 8, "rules": {"*": {"mesh": [2, 2, 2], "placements": ["S(0)", "S(1)", "S(2)"]}}})j",
              R"j({"ranks": 1, "rules": {"*": {"replicated": true}}})j");
  Svg part = draw(deep, "c");
  BOOST_TEST(part.says("dim 2 at index 0 (4 of 8 pieces are elsewhere)"));
  BOOST_TEST(part.of("piece").size() == 4U);
}

BOOST_AUTO_TEST_CASE(names_are_escaped) {
  Svg svg = draw(text_of(R"j({"fqn": "a<b>&\"c\"\u0001\ud83d\ude00", "shape": [4, 4]})j", fsdp4, fsdp4),
                 "a<b>&\"c\"\x01\xF0\x9F\x98\x80");
  BOOST_TEST(svg.says("a<b>&\"c\"\xEF\xBF\xBD\xF0\x9F\x98\x80:m"), svg.text);
  BOOST_TEST(svg.says("a <b> & c: f32 (4, 4)"));
}

BOOST_AUTO_TEST_CASE(relabelled_ranks_are_drawn_in_their_processes) {
  const std::string text = text_of(R"j({"fqn": "w", "shape": [12, 2]})j", fsdp4,
                                   R"j({"ranks": 3, "rules": {"*": {"chunk": 0, "over": 3}}})j");
  BOOST_TEST(draw(text, "w").sum("egress") == 48U);
  Svg svg = draw(text, "w", {"--relabel"});
  BOOST_TEST(svg.sum("egress") == 32U);
  BOOST_TEST(svg.sum("ingress") == 32U);
  BOOST_TEST(svg.says("rank 2 in process 3"));
}

BOOST_AUTO_TEST_CASE(many_ranks_stay_readable_and_bounded) {
  const auto side = [](const char* dim, int ranks) {
    const std::string count = std::to_string(ranks);
    return R"j({"ranks": )j" + count + R"j(, "rules": {"*": {"chunk": )j" + dim + R"j(, "over": )j" + count + "}}}";
  };
  const char* const tensor = R"j({"fqn": "w", "shape": [2048, 2048]})j";
  Svg cells = draw(text_of(tensor, side("0", 128), side("1", 128)), "w");  // 16,384 pieces
  BOOST_TEST(cells.of("piece").empty());
  BOOST_TEST(cells.says("16384 boxes, drawn as 96 x 96 cells"));
  BOOST_TEST(cells.of("cell").size() == 96U);  // each row has one source
  BOOST_TEST(cells.size < 1'000'000U);
  Svg thousand = draw(text_of(tensor, side("0", 1024), side("0", 1016)), "w");
  BOOST_TEST(thousand.of("held").size() == 1024U);
  BOOST_TEST(thousand.says("busiest of 2 per bar"));
  BOOST_TEST(thousand.size < 2'000'000U);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_drawn_is_bad_usage) {
  const std::string text = text_of(
      std::string(w) + R"j(, {"fqn": "n", "shape": [1]}, {"fqn": "none", "shape": [0, 4]})j", fsdp4, two_by_two);
  struct Bad {
    Words words;
    const char* says;
  };
  for (const Bad& bad :
       {Bad{{"--svg", svg_path(), "--tensor", "layer.0.w"},
            "there is no tensor 'layer.0.w'; the nearest are layers.0.w"},
        Bad{{"--svg", svg_path(), "--tensor", "layers.0.w:x"}, "has no state 'x'; known are m, v"},
        Bad{{"--svg", svg_path(), "--tensor", "layers.0.w:vv"},
            "has no state 'vv' (did you mean 'v'?); known are m, v"},
        Bad{{"--svg", svg_path(), "--tensor", "n"}, "goes by value"},
        Bad{{"--svg", svg_path(), "--tensor", "none:v"}, "has no elements"},
        Bad{{"--svg", svg_path()}, "belong together"}, Bad{{"--tensor", "layers.0.w"}, "belong together"},
        Bad{{"--svg", svg_path(), "--tensor", "layers.0.w", "--rank", "0"}, "leave out --rank"},
        Bad{{"--svg", "/nonexistent/x.svg", "--tensor", "layers.0.w"}, "there is no folder"},
        Bad{{"--svg", "/", "--tensor", "layers.0.w"}, "--svg /: this is a folder"}}) {
    const CommandResult result = plan(bad.words, text);
    BOOST_TEST(result.exit_code == 2);
    BOOST_TEST(result.out == "");
    BOOST_TEST(result.err.find(bad.says) != std::string::npos, result.err);
    BOOST_TEST(!std::ifstream(svg_path()).good());
  }
}

BOOST_AUTO_TEST_SUITE_END()
