// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
#include "shardwire/types.hpp"

namespace shardwire::restore {

/// What a run knows of one source when it looks at all of them.
struct Sample {
  ByteCount arrived_bytes = 0;  ///< never less than before until all has moved
  ByteCount owed_bytes = 0;     ///< 0 before it moves and once it is done or lost
  bool due = false;             ///< an answer, or bytes
  bool nothing_more = false;    ///< nor will anything be, as far as is known: it is not asked for signs of life
  bool under_way = false;       ///< it answers, bytes were asked for over a connection, and have not arrived
  Duration patience{};          ///< how long that is normal
};

/// Looks at sources twenty times within `notice`, each 10 ms to 250 ms, and tells when this process itself did not run meanwhile,
/// which says nothing about the sources.
/// Threads: loop thread only.
class RegularLook {
 public:
  /// `overslept`: the last look is so long ago that what others sent meanwhile may not have been read yet. The call may stop
  /// this object, and may not destroy it.
  using Look = std::function<void(Clock::Time now, bool overslept)>;

  /// Ownership: borrows the clock.
  RegularLook(Clock& clock, Duration notice, Look look);

  /// The next look comes an interval from now, also if there was to be an earlier one.
  void start();
  void stop();
  /// From one look to the next.
  [[nodiscard]] Duration interval() const { return interval_; }

 private:
  void look();

  Clock& clock_;
  Look look_;
  Duration interval_;
  Duration overslept_;  // after such a time without a look
  Clock::Time looked_;
  bool stopped_ = false;
  Timer timer_;
};

}  // namespace shardwire::restore
