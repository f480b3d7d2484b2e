// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "restore/owner.hpp"
#include "shardwire/types.hpp"

namespace shardwire::restore {

/// Follows the restores of a session from inside, and may spoil what arrives: for drills of faults. The sessions of
/// callers have none.
/// Threads: called on the session's thread. A call may block it, and must not call the session.
struct Probe {
  std::function<void(Stage stage)> entered;      ///< a restore has entered this stage
  std::function<void(ByteCount bytes)> arrived;  ///< more bytes of other processes are in place
  /// A part from this source is in place, and its check follows. True: one of its bits is to flip before.
  std::function<bool(Rank source)> spoils;
};

}  // namespace shardwire::restore
