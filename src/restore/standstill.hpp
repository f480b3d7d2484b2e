// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "restore/regular_look.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Finds connections that carry nothing any more without having failed: a route that is gone, a firewall that drops payloads.
/// Bytes were asked for, and for a long time none of them arrives, while their source goes on answering. `Silence` finds the
/// sources that do not answer.
/// Threads: loop thread only.
class Standstill {
 public:
  /// `sources`: how many there are.
  void begin(std::size_t sources, Clock::Time now) { last_.assign(sources, {now, 0}); }
  /// Call it for each source, at each look. For how long nothing has arrived of it, once that is longer than it has patience, and
  /// again if it lasts as long once more; else none.
  [[nodiscard]] std::optional<Duration> look(std::size_t source, const Sample& sample, Clock::Time now, bool overslept);

 private:
  struct Last {
    Clock::Time moved{};  // or nothing was under way
    ByteCount arrived_bytes = 0;
  };
  std::vector<Last> last_;  // by source
};

}  // namespace shardwire::restore
