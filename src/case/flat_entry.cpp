// SPDX-License-Identifier: Apache-2.0
#include "case/flat_entry.hpp"

#include <fmt/format.h>

#include <limits>

#include "case/layout_parser.hpp"
#include "shardwire/error.hpp"
#include "support/list_of.hpp"
#include "support/nearest.hpp"

namespace shardwire {

FlatEntry::FlatEntry(const Node& node) : node_(node) {
  node.require_fields({"flat", "world", "align", "within", "ranks"});
  for (const Node& list : node.at("flat").elements()) {
    lists_.push_back(list.elements());
    if (lists_.back().empty()) list.refuse("no tensor; \"*\" stands for every tensor that this entry serves");
    for (const Node& name : lists_.back()) static_cast<void>(name.name());
  }
  world_ = static_cast<int>(node.at("world").integer(1, max_ranks));
  if (const auto align = node.find("align")) align_ = align->integer(0, std::numeric_limits<std::int32_t>::max());
  if (const auto within = node.find("within")) parse_within(*within);
  if (const auto ranks = node.find("ranks")) ranks_ = parse_ranks(*ranks);
}

void FlatEntry::parse_within(const Node& within) {
  within.require_object();
  if (names_layout(within)) {
    outer_.emplace("*", parse_outer(within));
  } else {
    for (const auto& [name, outer] : within.members()) {
      if (name.empty()) outer.refuse("an empty name");
      outer_.emplace(name, parse_outer(outer));
    }
  }
  if (outer_.empty()) within.refuse("no outer rule");
  outer_ranks_ = outer_.begin()->second.ranks;
  for (const auto& [name, outer] : outer_) {
    if (outer.ranks == outer_ranks_) continue;
    within.refuse(fmt::format("the outer rules of {} and {} have {} and {} ranks; all must have as many",
                              quoted(outer_.begin()->first), quoted(name), outer_ranks_, outer.ranks));
  }
}

FlatEntry::Outer FlatEntry::parse_outer(const Node& node) {
  node.require_object();
  if (!node.has("mesh") && !node.has("chunk")) node.refuse("an outer rule is a mesh or a chunk");
  Layout layout = parse_layout(node);
  Extent ranks = 1;
  if (node.has("chunk")) {
    ranks = node.at("over").integer(1, max_ranks);
  } else {
    for (const Node& size : node.at("mesh").elements()) ranks *= size.integer(1, max_ranks);
  }
  return {std::move(layout), static_cast<int>(ranks)};
}

std::string FlatEntry::to_string() const {
  const std::string outer = outer_.empty() ? "" : fmt::format(", within layouts over {}", outer_ranks_);
  return fmt::format("{} over {} ranks{}", support::counted(lists_.size(), "flat parameter"), world_, outer);
}

FlatMember FlatEntry::member_of(const CaseTensor& tensor) const {
  FlatMember member{tensor.shape};
  if (outer_.empty()) return member;
  auto found = outer_.find(tensor.rule);
  if (found == outer_.end()) found = outer_.find("*");
  if (found == outer_.end()) {
    node_.at("within").refuse(
        fmt::format("no outer rule serves rule {} of tensor {}", quoted(tensor.rule), quoted(tensor.fqn)));
  }
  member.outer = found->second.layout;
  return member;
}

std::vector<FlatEntry::Member> FlatEntry::layouts_of(std::span<const CaseTensor* const> served,
                                                     const std::set<std::string>& elsewhere) const {
  constexpr std::uint32_t nowhere = ~0U;
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < served.size(); ++i) places.emplace(served[i]->fqn, i);
  std::vector<std::uint32_t> list_of(served.size(), nowhere);
  std::vector<std::optional<Layout>> layouts(served.size());
  for (std::uint32_t list = 0; list < lists_.size(); ++list) {
    std::vector<std::size_t> order;  // of the members
    const auto add = [&](const Node& name, std::size_t tensor) {
      if (list_of[tensor] != nowhere) {
        name.refuse(fmt::format("tensor {} stands twice in the lists", quoted(served[tensor]->fqn)));
      }
      list_of[tensor] = list;
      order.push_back(tensor);
    };
    for (const Node& name : lists_[list]) {
      const std::string fqn = name.text();
      const auto place = places.find(fqn);
      if (place != places.end()) {
        add(name, place->second);
      } else if (fqn == "*") {
        for (std::size_t i = 0; i < served.size(); ++i) add(name, i);
      } else if (!elsewhere.contains(fqn)) {
        std::vector<std::string_view> known;
        for (const auto& [served_name, index] : places) known.push_back(served_name);
        name.refuse(fmt::format("this entry serves no tensor {}{}", quoted(fqn), support::suggestion(fqn, known)));
      }
    }
    std::vector<FlatMember> members;
    for (const std::size_t tensor : order) members.push_back(member_of(*served[tensor]));
    for (std::size_t i = 0; i < order.size(); ++i) {  // flat() would name the member by its number
      const CaseTensor& tensor = *served[order[i]];
      if (!members[i].outer) continue;
      try {
        members[i].outer->check(tensor.shape, outer_ranks_);
      } catch (const Error& error) {
        if (volume_of(tensor.shape) == 1) {  // sent by value whatever its rule; it is placed as a whole tensor
          members[i].outer.reset();
          continue;
        }
        node_.at("within").refuse(fmt::format("{} (tensor {})", error.what(), quoted(tensor.fqn)));
      }
    }
    try {
      const std::vector<Layout> of_list = Layout::flat(members, world_, align_, outer_ranks_);
      for (std::size_t i = 0; i < order.size(); ++i) {
        layouts[order[i]] = ranks_ ? Layout::on_ranks(of_list[i], *ranks_) : of_list[i];
      }
    } catch (const Error& error) {
      node_.refuse(error.what());
    }
  }
  std::vector<Member> result;
  for (std::size_t i = 0; i < served.size(); ++i) {
    if (!layouts[i]) {
      node_.at("flat").refuse(
          fmt::format("tensor {}, which this entry serves, stands in no list", quoted(served[i]->fqn)));
    }
    result.push_back({*layouts[i], list_of[i]});
  }
  return result;
}

}  // namespace shardwire
