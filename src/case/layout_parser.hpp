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

/// One entry of a side's rules. What depends on shapes or on the number of ranks is left to Layout::check.
/// Errors: throws CaseError.
Layout parse_layout(const Node& node);

}  // namespace shardwire
