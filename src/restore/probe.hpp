// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>

#include "shardwire/types.hpp"

namespace shardwire::restore {

enum class Stage : std::uint8_t { plan, bind, move, verify, commit, stopping, done, failed };
constexpr const char* name_of(Stage stage) {
  constexpr const char* names[] = {"plan", "bind", "move", "verify", "commit", "stopping", "done", "failed"};
  static_assert(std::size(names) == static_cast<std::size_t>(Stage::failed) + 1);
  return names[static_cast<std::size_t>(stage)];
}
/// Sources are bound or read.
constexpr bool reads(Stage stage) {
  return stage == Stage::bind || stage == Stage::move || stage == Stage::verify;
}

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
