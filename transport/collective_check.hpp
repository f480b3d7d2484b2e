// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <vector>

#include "transport/collective.hpp"

// Checks that every collective makes before it posts a round.
namespace shardwire::transport {

inline void check_peers(std::vector<int> peers, int size) {
  std::sort(peers.begin(), peers.end());
  if (std::adjacent_find(peers.begin(), peers.end()) != peers.end()) {
    throw Error(ErrorCode::invalid_argument, "a round has one send to a member, and one receive from it, at most");
  }
  if (!peers.empty() && (peers.front() < 0 || peers.back() >= size)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a round names a member outside of 0..{}", size - 1));
  }
}

/// Errors: as Collective::round().
inline void check_round(std::span<const GroupSend> sends, std::span<const GroupReceive> receives, int size) {
  std::vector<int> peers;
  for (const GroupSend& send : sends) peers.push_back(send.to);
  check_peers(std::move(peers), size);
  peers = {};
  for (const GroupReceive& receive : receives) peers.push_back(receive.from);
  check_peers(std::move(peers), size);
}

}  // namespace shardwire::transport
