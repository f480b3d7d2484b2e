// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "transport/tcp/connection.hpp"

// Factories of the fabric's parts.
namespace shardwire::transport::tcp {

/// Streams to each peer, as SHARDWIRE_TCP_STREAMS sets. Errors: throws Error{invalid_argument} for an invalid value.
std::optional<int> stream_count();

std::unique_ptr<Region> allocate_region(ByteCount size_bytes, const MemoryPlace& place);
std::unique_ptr<Region> adopt_region(const Memory& memory);
/// Requires: an open connection of the engine.
std::unique_ptr<Endpoint> make_endpoint(std::shared_ptr<Engine> engine, std::shared_ptr<Connection> connection);

/// How long the destructor of an endpoint or a fabric flushes sent data.
inline constexpr auto flush_limit = std::chrono::milliseconds(100);

}  // namespace shardwire::transport::tcp
