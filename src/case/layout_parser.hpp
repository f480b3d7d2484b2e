// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "case/json_node.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// Ranks of one side; more are refused.
inline constexpr Extent max_ranks = Extent{1} << 24;

/// True for a word that names a layout kind, so that it cannot name a rule.
bool is_layout_keyword(std::string_view name);

/// True when `node`, an object, has a field that names a layout kind.
bool names_layout(const Node& node);
/// Errors: throws CaseError unless `node`, an object, names exactly one kind.
void require_one_kind(const Node& node);

/// A layout that needs to know nothing about the tensors: every kind but `flat`. What depends on shapes or on the number of ranks is left to Layout::check.
/// Errors: throws CaseError.
Layout parse_layout(const Node& node);

}  // namespace shardwire
