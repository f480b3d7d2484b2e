// SPDX-License-Identifier: Apache-2.0
// Lists of values: schema/manifest.capnp.
#include <algorithm>

#include "fuzz/target.hpp"
#include "geometry/value_items.hpp"
#include "wire/messages.hpp"

namespace shardwire::fuzz {

void values(Input input) {
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode_values(input); });
  allocation.require_at_most(input.size(), 1000, 1u << 20);
  if (!decoded) return;
  require(std::ranges::equal(wire::encode_values(*decoded), input), "a list of values has one form");
  for (std::size_t i = 0; i < decoded->size(); ++i) {
    require(depth_of(*(*decoded)[i].value) <= max_value_depth, "nesting has a limit");
    require(i == 0 || (*decoded)[i - 1].key < (*decoded)[i].key, "keys ascend");
  }
}

}  // namespace shardwire::fuzz
