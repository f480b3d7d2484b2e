// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "move/transfer.hpp"
#include "restore/owner.hpp"
#include "shardwire/types.hpp"
#include "support/digest128.hpp"

namespace shardwire::restore {

/// Follows the restores of a session from inside, and may spoil what arrives: for drills of faults. The sessions of
/// callers have none.
/// Threads: called on the session's thread. A call may block it, and must not call the session.
class Probe {
 public:
  /// A restore has entered this stage.
  virtual void entered(Stage stage) = 0;
  /// More bytes of other processes are in place.
  virtual void arrived(ByteCount bytes) = 0;
  /// A part from this source is in place, and its check follows. True: one of its bits is to flip before.
  virtual bool spoils(Rank source) = 0;

 protected:
  ~Probe() = default;
};

/// Flips one bit of a part in host memory. Returns the digest of the part afterwards.
Digest128 flip_bit(const move::TransferPart& part);

}  // namespace shardwire::restore
