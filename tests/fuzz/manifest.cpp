// SPDX-License-Identifier: Apache-2.0
// Descriptions of what a rank holds: schema/manifest.capnp.
#include <algorithm>

#include "fuzz/layout_promises.hpp"
#include "fuzz/target.hpp"
#include "wire/messages.hpp"

namespace shardwire::fuzz {

void manifest(Input input) {
  constexpr std::size_t max_tensors = 16;  // whose layouts are looked at
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode_manifest(input); });
  // Names may expand to 16 MiB, and checks of layouts have a budget of that size too.
  allocation.require_at_most(input.size(), 2000, 256u << 20);
  if (!decoded) return;
  require(std::ranges::equal(wire::encode_manifest(*decoded), input), "a manifest has one form");
  for (std::size_t i = 0; i < std::min(decoded->tensors.size(), max_tensors); ++i) {
    const TensorLayout& tensor = decoded->tensors[i];
    require_sound(tensor.layout, tensor.spec.shape, decoded->ranks);
  }
}

}  // namespace shardwire::fuzz
