// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <vector>

#include "memory/digest.hpp"
#include "move/transfer.hpp"
#include "transport/transport.hpp"

namespace shardwire::move {

/// What ways need of a restore's peers.
class Requests {
 public:
  /// Where one-sided reads from the peer go.
  virtual transport::Endpoint& endpoint(std::uint32_t peer) = 0;
  /// Asks a peer for parts: packed into one message, or each as a message of its own. A refusal ends the restore.
  virtual void ask(std::uint32_t peer, std::uint64_t request, std::vector<PackPart> parts, bool each) = 0;
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
  /// Digest of what is in place now, of a part whose source has not sent its own along.
  virtual void digested(const TransferPart& part, const memory::Digest128& digest) = 0;
  /// The source's digest of this part is another one.
  virtual void differs(const TransferPart& part) = 0;

 protected:
  ~Events() = default;
};

}  // namespace shardwire::move
