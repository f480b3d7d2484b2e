// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "fabric.hpp"
#include "network.hpp"
#include "session/surroundings.hpp"

namespace shardwire::simulation {

/// The parts that a session takes from its process: a loop with this seed of its random numbers, and these fabrics.
shardwire::detail::Surroundings surroundings_of(Process& process, FabricNetwork& fabrics, std::uint64_t seed,
                                                std::span<const FabricKind> kinds);

}  // namespace shardwire::simulation
