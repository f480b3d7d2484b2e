// SPDX-License-Identifier: Apache-2.0
#include "plan/layout_table.hpp"

#include <fmt/format.h>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

std::size_t combine_hashes(std::size_t hash, std::size_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15U;
}

std::size_t hash_of(const RuleDescription& description) {
  std::size_t hash = std::hash<std::string>{}(description.kind);
  for (const auto& [name, values] : description.fields) {
    hash = combine_hashes(hash, std::hash<std::string>{}(name));
    for (const Extent value : values) hash = combine_hashes(hash, static_cast<std::size_t>(value)) ^ (hash >> 29);
  }
  for (const RuleDescription& inner : description.inner) hash = combine_hashes(hash, hash_of(inner));
  return hash;
}

}  // namespace

std::size_t LayoutTable::ShapeHash::operator()(const Extents& shape) const {
  std::size_t hash = shape.size();
  for (const Extent extent : shape) hash = combine_hashes(hash, static_cast<std::size_t>(extent)) ^ (hash >> 29);
  return hash ^ (hash >> 32);
}

std::size_t LayoutTable::CheckedHash::operator()(const Checked& key) const {
  return combine_hashes(static_cast<std::size_t>(key.ranks), key.layout_and_shape) >> 7;
}

std::uint32_t LayoutTable::id_of(const Extents& shape) {
  // States of one parameter follow one another.
  if (last_shape_ < shapes_.size() && shapes_[last_shape_] == shape) return last_shape_;
  const auto [known, fresh] = by_shape_.try_emplace(shape, static_cast<std::uint32_t>(shapes_.size()));
  if (fresh) shapes_.push_back(shape);
  return last_shape_ = known->second;
}

std::uint32_t LayoutTable::id_of(const Layout& layout) {
  if (last_rule_.first == &layout.rule()) return last_rule_.second;
  if (const auto known = by_rule_.find(&layout.rule()); known != by_rule_.end()) {
    last_rule_ = *known;
    return known->second;
  }
  const RuleDescription description = layout.rule().describe();
  const std::size_t hash = hash_of(description);
  auto id = static_cast<std::uint32_t>(layouts_.size());
  const auto [first, last] = by_content_.equal_range(hash);
  for (auto candidate = first; candidate != last; ++candidate) {
    if (layouts_[candidate->second].rule().describe() == description) id = candidate->second;
  }
  if (id == layouts_.size()) {
    by_content_.emplace(hash, id);
    layouts_.push_back(layout);
  } else {
    kept_.push_back(layout);
  }
  by_rule_.emplace(&layout.rule(), id);
  return id;
}

void LayoutTable::check(const TensorLayout& tensor, int ranks) {
  const std::uint64_t pair = (std::uint64_t{id_of(tensor.layout)} << 32U) | id_of(tensor.spec.shape);
  if (!checked_.insert({pair, ranks}).second) return;
  try {
    tensor.layout.check(tensor.spec.shape, ranks);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("tensor {}: {}", to_string(tensor.spec.key), error.what()));
  }
}

}  // namespace shardwire
