// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "shardwire/types.hpp"

namespace shardwire::support {

/// Encryption of one connection, from its handshake on. Moves no bytes itself. Use from one thread.
class Encryption {
 public:
  virtual ~Encryption() = default;

  /// Encrypts these bytes, once the handshake is complete; keeps them until then.
  virtual void send(std::span<const std::byte> bytes) = 0;
  /// Takes bytes that have come from the peer, and appends to `decrypted`.
  /// Errors: throws Error{invalid_argument} if the handshake fails, as with different keys; Error{transport_failed} for bytes
  ///         that are not what the peer has sent. output() may then hold an alert for the peer, and nothing else works.
  virtual void receive(std::span<const std::byte> bytes, Bytes& decrypted) = 0;
  /// Replaces `into` by what has to go to the peer now, after each call of the others. It is taken. Allocates nothing if the same
  /// memory comes again and again.
  virtual void output(Bytes& into) = 0;
};

}  // namespace shardwire::support
