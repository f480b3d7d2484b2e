// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "support/descriptors.hpp"

// Sends descriptors over a local stream socket (SCM_RIGHTS), such as those of a region to a peer.
namespace shardwire::support {

/// The kernel's maximum per message.
inline constexpr std::size_t max_passed_descriptors = 253;

/// Sends what the socket accepts of `bytes`, and the descriptors with its first byte. Returns the number of bytes sent:
/// 0 if the socket is non-blocking and full, and then no descriptor was sent either.
/// Requires: at least one byte, no more than max_passed_descriptors.
/// Errors: throws Error{peer_lost} if the peer has gone, Error{out_of_resources} if too many descriptors are under way
///         (ulimit -n), Error{transport_failed} otherwise.
std::size_t send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct ReceivedMessage {
  std::size_t bytes = 0;
  bool closed = false;  ///< the peer sends no more; false with no bytes: nothing has arrived yet
  std::vector<Descriptor> descriptors{};
};

/// Receives what has arrived, at most `into`, and the descriptors that came with its first byte.
/// Errors: throws Error{transport_failed} for more than `max_descriptors`, or for other ancillary messages, and
///         Error{out_of_resources} if this process may not open so many; all descriptors that arrived are closed.
ReceivedMessage receive_with_descriptors(int socket, std::span<std::byte> into, std::size_t max_descriptors);

}  // namespace shardwire::support
