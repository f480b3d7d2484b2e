// SPDX-License-Identifier: Apache-2.0
#include "case/parallel.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <vector>

#include "case/case.hpp"
#include "case/layout_parser.hpp"
#include "support/nearest.hpp"

namespace shardwire {
namespace {

class DegreesParser {
 public:
  DegreesParser(std::string_view where, std::string_view text) : where_(where), text_(text) {}

  Degrees parse() {
    for (std::size_t begin = 0; begin <= text_.size();) {
      const std::size_t end = std::min(text_.find(',', begin), text_.size());
      add(text_.substr(begin, end - begin));
      begin = end + 1;
    }
    if (said_.contains("ddp") + said_.contains("fsdp") + said_.contains("hsdp") > 1) {
      refuse("one of ddp, fsdp and hsdp is expected; hsdp=RxS is fsdp over S ranks in R replicas");
    }
    if (result_.shards % result_.experts != 0 || (result_.experts > 1 && result_.shards == 1)) {
      refuse(fmt::format("ep={} does not divide the {} shards of fsdp or hsdp, in which the groups of experts are",
                         result_.experts, result_.shards));
    }
    const Extent ranks = Extent{result_.replicas} * result_.shards;
    if (ranks > max_ranks || ranks * result_.tensor > max_ranks) refuse(fmt::format("more than {} ranks", max_ranks));
    return result_;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw CaseError(fmt::format("{} {}: {}", where_, text_.substr(0, 80), why));
  }

  int number(std::string_view text) const {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > max_ranks) {
      refuse(fmt::format("'{}' is no number of ranks", text));
    }
    return value;
  }

  void add(std::string_view item) {
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) refuse("kinds and numbers of ranks are expected, such as fsdp=8,tp=2");
    const std::string_view kind = item.substr(0, equals);
    const std::string_view value = item.substr(equals + 1);
    if (!said_.insert(kind).second) refuse(fmt::format("{} stands twice", kind));
    if (kind == "hsdp") {
      const std::size_t times = value.find('x');
      if (times == std::string_view::npos) refuse("hsdp=RxS is expected: R replicas of S shards");
      result_.replicas = number(value.substr(0, times));
      result_.shards = number(value.substr(times + 1));
    } else if (kind == "ddp") {
      result_.replicas = number(value);
    } else if (kind == "fsdp") {
      result_.shards = number(value);
    } else if (kind == "tp") {
      result_.tensor = number(value);
    } else if (kind == "ep") {
      result_.experts = number(value);
    } else {
      refuse(fmt::format("'{}' is unknown{}", kind, support::known_words(kind, "fsdp, hsdp, ddp, tp, ep")));
    }
  }

  std::string_view where_;
  std::string_view text_;
  std::set<std::string_view> said_;
  Degrees result_;
};

// A mesh, dim by dim. Dims of one rank are left out.
struct Mesh {
  std::vector<int> shape;
  std::vector<std::string> placements;

  void add(int size, const std::string& placement) {
    if (size == 1) return;
    shape.push_back(size);
    placements.push_back(fmt::format("\"{}\"", placement));
  }
};

}  // namespace

Degrees parse_degrees(std::string_view where, const std::string& text) {
  return DegreesParser(where, text).parse();
}

std::string layout_json(const Degrees& degrees, const Split& split, int group, int groups) {
  const bool of_group = group >= 0 && degrees.experts > 1;
  const int shards = of_group ? degrees.shards / degrees.experts : degrees.shards;
  const bool sharded = split.sharded && shards > 1;
  const bool split_by_tensor = split.dim >= 0 && degrees.tensor > 1;
  // FSDP splits what tensor parallelism has left. Dims of several parts have no strided shard for that, so tp comes first.
  const bool twice = sharded && split_by_tensor && split.dim == 0;
  const bool tensor_first = twice && split.parts > 1;
  const std::string by_tensor = !split_by_tensor   ? "R"
                                : split.parts == 1 ? fmt::format("S({})", split.dim)
                                                   : fmt::format("SS({},{})", split.dim, split.parts);
  const std::string by_shard = !sharded                 ? "R"
                               : twice && !tensor_first ? fmt::format("SS(0,{})", degrees.tensor)
                                                        : "S(0)";
  Mesh mesh;
  mesh.add(degrees.replicas, "R");
  if (tensor_first) mesh.add(degrees.tensor, by_tensor);
  mesh.add(shards, by_shard);
  if (!tensor_first) mesh.add(degrees.tensor, by_tensor);

  std::vector<int> ranks;
  if (of_group || tensor_first) {
    const int step = of_group ? degrees.experts : 1;  // between the shards of a group
    const int first = of_group ? group / (groups / degrees.experts) : 0;
    const auto rank = [&](int replica, int shard, int tensor) {
      return (replica * degrees.shards + shard * step + first) * degrees.tensor + tensor;
    };
    for (int replica = 0; replica < degrees.replicas; ++replica) {
      for (int outer = 0; outer < (tensor_first ? degrees.tensor : shards); ++outer) {
        for (int inner = 0; inner < (tensor_first ? shards : degrees.tensor); ++inner) {
          ranks.push_back(tensor_first ? rank(replica, inner, outer) : rank(replica, outer, inner));
        }
      }
    }
  }
  const std::string listed = ranks.empty() ? std::string() : fmt::format(", \"ranks\": [{}]", fmt::join(ranks, ", "));
  const bool whole = std::ranges::all_of(mesh.placements, [](const std::string& one) { return one == "\"R\""; });
  if (whole) return fmt::format("{{\"replicated\": true{}}}", listed);
  if (mesh.shape.size() == 1 && by_shard == "S(0)")
    return fmt::format("{{\"chunk\": 0, \"over\": {}{}}}", shards, listed);
  return fmt::format("{{\"mesh\": [{}], \"placements\": [{}]{}{}}}", fmt::join(mesh.shape, ", "),
                     fmt::join(mesh.placements, ", "), twice && !tensor_first ? ", \"order\": \"tp_first\"" : "",
                     listed);
}

}  // namespace shardwire
