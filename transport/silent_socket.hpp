// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::transport {

/// A connected socket that carries no data: its end of file means that the peer is gone. Returns empty while the peer
/// is silent, otherwise what happened. Reads what has arrived, so every sender is detected.
[[nodiscard]] std::string why_not_silent(int socket);

}  // namespace shardwire::transport
