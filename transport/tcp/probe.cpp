// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <charconv>

#include "support/environment.hpp"
#include "transport/tcp/handles.hpp"

namespace shardwire::transport::tcp {

Viability probe(Asked) {
  return {true, "built in"};
}

std::optional<int> stream_count() {
  const auto text = support::variable("SHARDWIRE_TCP_STREAMS");
  if (!text) return std::nullopt;
  int count = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, count);
  if (error == std::errc() && stop == end && count >= 1 && count <= max_streams) return count;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("SHARDWIRE_TCP_STREAMS is \"{}\"; it must be a number from 1 to {}", *text, max_streams));
}

}  // namespace shardwire::transport::tcp
