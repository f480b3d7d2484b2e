// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Calls a watch over sources twenty times within `notice`, each 10 ms to 250 ms, and tells it when this process itself did not run meanwhile, which
/// says nothing about the sources.
/// Threads: loop thread only.
class RegularLook {
 public:
  /// `overslept`: the last look is so long ago that what others sent meanwhile may not have been read yet. The call may stop
  /// this object, and may not destroy it.
  using Look = std::function<void(Clock::Time now, bool overslept)>;

  /// Ownership: borrows the clock.
  RegularLook(Clock& clock, Duration notice, Look look);

  /// Returns the present time.
  Clock::Time start();
  void stop();
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// From one look to the next.
  [[nodiscard]] Duration interval() const { return interval_; }

 private:
  void look();

  Clock& clock_;
  Look look_;
  Duration interval_;
  Duration overslept_;  // after such a time without a look
  Clock::Time looked_{};
  bool stopped_ = false;
  Timer timer_;
};

}  // namespace shardwire::restore
