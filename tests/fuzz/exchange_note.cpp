// SPDX-License-Identifier: Apache-2.0
// Notes at the barriers of an exchange: schema/exchange.capnp.
#include "wire/exchange_note.hpp"

#include "fuzz/target.hpp"

namespace shardwire::fuzz {

void exchange_note(Input input) {
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode_exchange_note(input); });
  allocation.require_at_most(input.size(), 500, 1u << 20);
  if (!decoded) return;
  for (const wire::ExchangeRequest& request : decoded->requests) {
    require(request.run_bytes % request.item_bytes == 0 && request.bytes % request.run_bytes == 0,
            "planning divides by the sizes of a request");
  }
  require(wire::decode_exchange_note(wire::encode_exchange_note(*decoded)) == *decoded,
          "a note survives being encoded");
}

}  // namespace shardwire::fuzz
