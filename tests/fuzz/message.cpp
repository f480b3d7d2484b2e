// SPDX-License-Identifier: Apache-2.0
// Control messages: schema/control.capnp.
#include <algorithm>

#include "fuzz/target.hpp"
#include "wire/messages.hpp"

namespace shardwire::fuzz {

void message(Input input) {
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode(input); });
  // A byte can be a box without dims, which takes 144 bytes and travels in two lists.
  allocation.require_at_most(input.size(), 500, 1u << 20);
  // The words of a message are read in place only if they are aligned.
  Bytes shifted(input.size() + 1);
  std::copy(input.begin(), input.end(), shifted.begin() + 1);
  require(accepted([&] { return wire::decode(Input(shifted).subspan(1)); }) == decoded,
          "alignment does not change the meaning");
  if (!decoded) return;
  const Bytes encoded = wire::encode(*decoded);
  require(wire::decode(encoded) == *decoded, "a message survives being encoded");
  require(wire::encode(wire::decode(encoded)) == encoded, "equal messages have equal bytes");
}

}  // namespace shardwire::fuzz
