// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace shardwire::transport {

/// A connected socket on which nothing travels: its end is the end of the peer. Empty as long as there is nothing to say; else
/// what has happened. Reads what has come, so whoever sends there is found out each time.
[[nodiscard]] std::string why_not_silent(int socket);

}  // namespace shardwire::transport
