// SPDX-License-Identifier: Apache-2.0
#include "case/json_node.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "case/case.hpp"
#include "support/nearest.hpp"

namespace shardwire {

void Node::refuse(const std::string& why) const {
  throw CaseError(place_.empty() ? why : place_ + ": " + why);
}

void Node::refuse_unknown(std::string_view what, const std::string& given, std::string_view known,
                          std::string_view meant) const {
  constexpr std::size_t shown = 80;
  refuse(fmt::format("unknown {} {}{}", what, quoted(given.substr(0, shown)),
                     support::known_words(meant.empty() ? given : meant, known)));
}

std::string Node::place_of(std::string_view field) const {
  const std::string step = path_step(field);
  return place_.empty() && step.starts_with('.') ? step.substr(1) : place_ + step;
}

void Node::require_object() const {
  if (!value_->is_object()) refuse(fmt::format("an object is expected, this is {}", value_->type_name()));
}

void Node::require_fields(std::initializer_list<std::string_view> allowed) const {
  require_object();
  for (const auto& [field, value] : value_->items()) {
    if (std::find(allowed.begin(), allowed.end(), field) != allowed.end()) continue;
    Node(value, place_of(field))
        .refuse("unknown field" + support::known_words(field, fmt::format("{}", fmt::join(allowed, ", "))));
  }
}

std::optional<Node> Node::find(const char* field) const {
  const auto found = value_->find(field);
  if (found == value_->end()) return std::nullopt;
  return Node(*found, place_of(field));
}

Node Node::at(const char* field) const {
  require_object();
  std::optional<Node> found = find(field);
  if (!found) refuse(fmt::format("the field '{}' is missing", field));
  return *found;
}

std::vector<std::pair<std::string, Node>> Node::members() const {
  require_object();
  std::vector<std::pair<std::string, Node>> members;
  for (const auto& [name, value] : value_->items()) members.emplace_back(name, Node(value, place_of(name)));
  return members;
}

std::vector<Node> Node::elements() const {
  if (!value_->is_array()) refuse(fmt::format("a list is expected, this is {}", value_->type_name()));
  std::vector<Node> elements;
  elements.reserve(value_->size());
  for (std::size_t i = 0; i < value_->size(); ++i)
    elements.emplace_back((*value_)[i], fmt::format("{}[{}]", place_, i));
  return elements;
}

Extent Node::integer(Extent least, Extent most) const {
  if (!value_->is_number_integer()) {
    refuse(
        fmt::format("an integer is expected, this is {}", value_->is_number() ? value_->dump() : value_->type_name()));
  }
  const bool too_large = value_->is_number_unsigned() &&
                         value_->get<std::uint64_t>() > static_cast<std::uint64_t>(std::max<Extent>(most, 0));
  if (too_large || value_->get<Extent>() < least || value_->get<Extent>() > most) {
    refuse(fmt::format("{} is not from {} to {}", value_->dump(), least, most));
  }
  return value_->get<Extent>();
}

Extents Node::shape(Extent most) const {
  std::vector<Extent> extents;
  for (const Node& extent : elements()) extents.push_back(extent.integer(0, most));
  if (extents.size() > max_dims) refuse(fmt::format("{} dims; at most {} are supported", extents.size(), max_dims));
  return Extents(std::span<const Extent>(extents));
}

double Node::number(double least, double most) const {
  if (!value_->is_number()) refuse(fmt::format("a number is expected, this is {}", value_->type_name()));
  const auto value = value_->get<double>();
  if (!(value >= least && value <= most)) refuse(fmt::format("{} is not from {} to {}", value_->dump(), least, most));
  return value;
}

bool Node::boolean() const {
  if (!value_->is_boolean()) refuse(fmt::format("true or false is expected, this is {}", value_->type_name()));
  return value_->get<bool>();
}

std::string Node::text() const {
  if (!value_->is_string()) refuse(fmt::format("a text is expected, this is {}", value_->type_name()));
  return value_->get<std::string>();
}

std::string Node::name() const {
  std::string value = text();
  if (value.empty()) refuse("an empty name");
  // The seed of element values separates two names by a NUL.
  if (value.find('\0') != std::string::npos) refuse("a name with a NUL character");
  return value;
}

}  // namespace shardwire
