// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include "memory/digest.hpp"
#include "move/transfer.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// How a source answers a request for parts.
enum class MessageForm : std::uint8_t {
  packed,    ///< copied into one message
  each,      ///< one message per part, sent from its contiguous location
  gathered,  ///< one message, gathered from their locations
};

/// The connection from the methods to a restore's peers.
class Requests {
 public:
  /// The endpoint for one-sided reads from the peer.
  virtual transport::Endpoint& endpoint(std::uint32_t peer) = 0;
  /// Requests parts from a peer. A refusal ends the restore.
  virtual void ask(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts, MessageForm form) = 0;
  /// This request is complete or no longer relevant: a refusal of it is ignored.
  virtual void forget(std::uint32_t peer, std::uint64_t request) = 0;

 protected:
  ~Requests() = default;
};

/// The rounds of a collective, as one restore sees them: other restores, and other members, take part as well.
class CollectiveRounds {
 public:
  /// Takes over all transfers of this restore that come in rounds, possibly none. `ended` runs once, unless stop() is
  /// called before: true if all bytes are in place, false if the rounds have failed.
  virtual void begin(std::span<const Transfer* const> transfers, std::function<void(bool received)> ended) = 0;
  /// Ends rounds that write for this restore; writing() becomes false soon.
  virtual void stop() = 0;
  /// The rounds may be writing into the destination.
  [[nodiscard]] virtual bool writing() const = 0;

 protected:
  ~CollectiveRounds() = default;
};

/// Callbacks from the methods to their restore.
class Events {
 public:
  /// Data arrived or a slot became free.
  virtual void changed() = 0;
  /// The restore cannot continue.
  virtual void failed(const std::exception_ptr& error) = 0;
  /// The same, because of bytes from this peer.
  virtual void peer_failed(std::uint32_t peer, const transport::Fault& fault) = 0;
  /// Digest of a part in place whose source sent no digest with it.
  virtual void digested(const TransferPart& part, const Digest128& digest) = 0;
  /// The source's digest of this part, or of the message that begins with it, differs. Engine::take_differing() returns all parts
  /// of the message.
  virtual void differs(const TransferPart& part) = 0;

 protected:
  ~Events() = default;
};

}  // namespace shardwire::move
