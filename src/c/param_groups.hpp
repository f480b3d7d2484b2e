// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "shardwire/c/catalog.h"
#include "shardwire/param_groups.hpp"

namespace shardwire::c_api {

/// Errors: throws Error{invalid_argument} for missing names, and for options that are no map.
std::vector<ParamGroup> param_groups(std::span<const shardwire_param_group> given);
/// The options of each group: a list of maps.
Value options_of(std::span<const ParamGroup> groups);

}  // namespace shardwire::c_api
