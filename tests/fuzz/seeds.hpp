// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::fuzz {

/// A valid input of a target, or one that is nearly valid.
struct Seed {
  std::string target;
  std::string name;
  Bytes bytes;
};

/// The same on every machine, with every compiler.
std::vector<Seed> all_seeds();

}  // namespace shardwire::fuzz
