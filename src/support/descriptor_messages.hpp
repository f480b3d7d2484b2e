// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "support/descriptors.hpp"

// Descriptors over a local stream socket (SCM_RIGHTS): how the descriptors of a region reach a peer.
namespace shardwire::support {

/// Most that the kernel takes with one message.
inline constexpr std::size_t max_passed_descriptors = 253;

/// Sends what the socket takes of `bytes`, and the descriptors with the first of them. Returns how many bytes went: 0 when
/// the socket does not block and is full, and then no descriptor went either.
/// Requires: at least one byte, no more than max_passed_descriptors.
/// Errors: throws Error{peer_lost} when the peer has gone, Error{out_of_resources} when too many descriptors are on their
///         way (ulimit -n), Error{transport_failed} otherwise.
std::size_t send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

struct ReceivedMessage {
  std::size_t bytes = 0;
  bool closed = false;  ///< the peer sends no more; false with no bytes: nothing is there yet
  std::vector<Descriptor> descriptors{};
};

/// Receives what is there, at most `into`, and the descriptors that came with the first of it.
/// Errors: throws Error{transport_failed} when there are more than `max_descriptors`, or other messages to the side, and
///         Error{out_of_resources} when this process may not have so many; whatever did arrive is closed.
ReceivedMessage receive_with_descriptors(int socket, std::span<std::byte> into, std::size_t max_descriptors);

}  // namespace shardwire::support
