// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "restore/regular_look.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Finds sources that have become a bottleneck: each delivers at less than a quarter of the best pace that this restore has
/// seen, its own earlier one included, and at that pace needs longer than `notice` for what it still owes. A restore whose
/// sources were slow from the first byte on has nothing to compare with, and finds none.
/// Threads: loop thread only.
class SlowSources {
 public:
  /// Of one source, so far.
  struct Delivery {
    ByteCount arrived_bytes = 0;  ///< never less than before, also of a source that is done or lost
    ByteCount owed_bytes = 0;
  };
  class Listener {
   public:
    [[nodiscard]] virtual Delivery delivery_of(std::size_t source) const = 0;
    /// Called at the end of each period of `notice` with a slow source. The call may stop this object.
    virtual void on_slow(std::span<const std::size_t> sources) = 0;

   protected:
    ~Listener() = default;
  };

  /// `sources`: how many there are. Ownership: borrows clock and listener.
  SlowSources(Clock& clock, Listener& listener, std::size_t sources, Duration notice);

  void start();
  void stop() { look_.stop(); }

 private:
  void begin_period(Clock::Time now);
  void look(Clock::Time now, bool overslept);
  [[nodiscard]] double pace_of(std::size_t source, double seconds) const;
  void note_paces(double seconds, bool of_done);
  [[nodiscard]] std::vector<std::size_t> slow_in(double seconds) const;

  Listener& listener_;
  Duration notice_;
  std::vector<Delivery> begin_;  // of the period, by source
  Clock::Time began_{};          // the period
  double best_pace_ = 0;         // bytes per second
  RegularLook look_;
};

}  // namespace shardwire::restore
