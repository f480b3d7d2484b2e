// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "memory/digest.hpp"
#include "move/transfer.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// How the parts of a request come.
enum class Answer : std::uint8_t {
  packed,    ///< copied into one message
  each,      ///< a message for each, from where it lies in one piece
  gathered,  ///< one message, gathered from where they lie
};

/// What ways need of a restore's peers.
class Requests {
 public:
  /// Where one-sided reads from the peer go.
  virtual transport::Endpoint& endpoint(std::uint32_t peer) = 0;
  /// Asks a peer for parts. A refusal ends the restore.
  virtual void ask(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts, Answer answer) = 0;
  /// All of this request has come, or nothing of it matters any more: nor does a refusal.
  virtual void forget(std::uint32_t peer, std::uint64_t request) = 0;

 protected:
  ~Requests() = default;
};

/// What ways have to say to their restore.
class Events {
 public:
  /// Something arrived or a slot came free.
  virtual void changed() = 0;
  /// The restore cannot go on.
  virtual void failed(const std::exception_ptr& error) = 0;
  /// The same, because of what has become of bytes from this peer.
  virtual void peer_failed(std::uint32_t peer, const transport::Fault& fault) = 0;
  /// Digest of what is in place now, of a part whose source has not sent its own along.
  virtual void digested(const TransferPart& part, const memory::Digest128& digest) = 0;
  /// The source's digest of this part is another one.
  virtual void differs(const TransferPart& part) = 0;

 protected:
  ~Events() = default;
};

}  // namespace shardwire::move
