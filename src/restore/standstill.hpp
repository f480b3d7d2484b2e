// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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
  /// Of one source, so far.
  struct Delivery {
    ByteCount arrived_bytes = 0;
    bool under_way = false;  ///< the source answers, bytes were asked for over a connection, and have not arrived
    Duration patience{};     ///< how long that is normal
  };
  class Listener {
   public:
    [[nodiscard]] virtual Delivery asked_of(std::size_t source) const = 0;
    /// Nothing has arrived for this long. Called again if that lasts as long once more. The call may stop this object.
    virtual void on_standstill(std::size_t source, Duration lasted) = 0;

   protected:
    ~Listener() = default;
  };

  /// `sources`: how many there are. `notice`: as RestoreOptions::notice. Ownership: borrows clock and listener.
  Standstill(Clock& clock, Listener& listener, std::size_t sources, Duration notice);

  void start();
  void stop() { look_.stop(); }

 private:
  struct Last {
    Clock::Time moved{};  // or nothing was under way
    ByteCount arrived_bytes = 0;
  };
  void look(Clock::Time now, bool overslept);

  Listener& listener_;
  std::vector<Last> last_;  // by source
  RegularLook look_;
};

}  // namespace shardwire::restore
