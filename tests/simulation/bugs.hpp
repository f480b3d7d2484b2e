// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwire::simulation {

/// A fault of the simulated machine that no real one has. A search that does not find it is blind.
enum class Bug : std::uint8_t {
  none,
  flipped,    ///< a fabric changes a byte on its way
  early,      ///< a read completes before its last range has arrived
  misplaced,  ///< some reads take bytes from beside their range
  shortened,  ///< some payloads lack their last bytes
  dropped,    ///< some messages were sent, and never arrive
  lost,       ///< some operations of a fabric never complete, not even after abort()
  leaked,     ///< a fabric never forgets a region
  swapped,    ///< a stream delivers some bytes in the wrong order
  deaf,       ///< the end of a killed process is never seen
  late,       ///< alarms are 5 s late
  mute,       ///< some alarms never ring
  asleep,     ///< a thread that waits is not woken before its timeout
  unseeded,   ///< the seed does not decide what happens: equal runs differ
};
inline constexpr std::string_view bug_names[] = {"none",    "flipped", "early",  "misplaced", "shortened",
                                                 "dropped", "lost",    "leaked", "swapped",   "deaf",
                                                 "late",    "mute",    "asleep", "unseeded"};

inline std::optional<Bug> bug_of(std::string_view name) {
  for (std::size_t i = 0; i < std::size(bug_names); ++i) {
    if (bug_names[i] == name) return static_cast<Bug>(i);
  }
  return std::nullopt;
}

}  // namespace shardwire::simulation
