// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "transport/tcp/connection.hpp"

// How the parts of the fabric are made.
namespace shardwire::transport::tcp {

/// Streams to each peer that SHARDWIRE_TCP_STREAMS asks for. Errors: throws Error{invalid_argument} for a value that is none.
std::optional<int> stream_count();

std::unique_ptr<Region> allocate_region(ByteCount size_bytes, const MemoryPlace& place);
std::unique_ptr<Region> adopt_region(const Memory& memory);
/// Requires: an open connection of the engine.
std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Engine> engine, std::shared_ptr<Connection> connection);

/// What an endpoint or a fabric that is destroyed gives to what has been sent.
inline constexpr auto flush_limit = std::chrono::milliseconds(100);

}  // namespace shardwire::transport::tcp
