// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "case/json_node.hpp"
#include "shardwire/layout.hpp"

namespace shardwire {

/// Maximum ranks of one side.
inline constexpr Extent max_ranks = Extent{1} << 24;

/// True for a layout kind, which therefore cannot name a rule.
bool is_layout_keyword(std::string_view name);

/// True if `node`, an object, has a field that names a layout kind.
bool names_layout(const Node& node);
/// Errors: throws CaseError unless `node`, an object, names exactly one kind.
void require_one_kind(const Node& node);

/// A list of ranks. Errors: throws CaseError.
std::vector<Rank> parse_ranks(const Node& list);

/// A layout that does not depend on the tensors: every kind but `flat`. Layout::check validates dependencies on shapes
/// and on the number of ranks.
/// Errors: throws CaseError.
Layout parse_layout(const Node& node);

}  // namespace shardwire
