// SPDX-License-Identifier: Apache-2.0
// Headers of payloads on a fabric.
#include "wire/payload_header.hpp"

#include <algorithm>

#include "fuzz/target.hpp"

namespace shardwire::fuzz {

void payload_header(Input input) {
  const wire::PayloadHeader header = wire::decode_header(input);
  if (header == wire::PayloadHeader{}) return;  // a header of another form
  require(input.size() == 8 || input.size() == 32, "headers have one of two sizes");
  const wire::EncodedHeader encoded(header);
  require(encoded.bytes().size() <= input.size(), "the encoder's form is the shortest");
  require(wire::decode_header(encoded.bytes()) == header, "a header survives being encoded");
  // The long form of what the short one says is the only other form of a header.
  require(encoded.bytes().size() != input.size() || !header.digest || std::ranges::equal(encoded.bytes(), input),
          "a header has one form");
}

}  // namespace shardwire::fuzz
