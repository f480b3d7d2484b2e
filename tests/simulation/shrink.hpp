// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "schedule.hpp"

namespace shardwire::simulation {

/// The schedule with these actions only, by their indexes, ascending.
Schedule with_actions(const Schedule& schedule, const std::vector<std::size_t>& kept);

/// The text of a failure without its numbers: two failures of one cause have the same.
std::string kind_of(const std::string& failure);

/// The fewest actions, by their indexes, with which `fails` still holds: no single one of them can be left out.
/// `whole_job`: members still join and publish, since restores would fail without.
/// Requires: fails(schedule). Cost: some dozen runs.
std::vector<std::size_t> shrink(const Schedule& schedule, bool whole_job,
                                const std::function<bool(const Schedule&)>& fails);

}  // namespace shardwire::simulation
