// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "restore/regular_look.hpp"
#include "restore/source.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"

namespace shardwire::restore {

/// Finds sources of which something is due and nothing is heard: stopped processes, hosts that are gone, links that are
/// cut. Bytes and answers of any kind count as signs of life, so a slow source is none of these.
/// Threads: loop thread only.
class Silence {
 public:
  /// Bytes and answers that one source owes.
  struct Due {
    bool anything = false;
    bool nothing_more = false;    ///< nor will anything be, as far as is known: it is not asked for signs of life
    ByteCount arrived_bytes = 0;  ///< of this source, so far
  };
  class Listener {
   public:
    [[nodiscard]] virtual Due due_from(const Source& source) const = 0;
    /// All sources that are silent now. `doubtful`: others that have not answered either since the first of `sources` was
    /// silent for half of `notice`, whether or not they owe something. Called again and again while it lasts. The call may
    /// release them, and stop this object.
    virtual void on_silent(std::span<Source* const> sources, std::span<Source* const> doubtful) = 0;

   protected:
    ~Listener() = default;
  };

  /// `notice`: silence that is reported. A source that is silent for half of it is asked for a sign of life.
  /// Ownership: borrows clock, listener and sources.
  Silence(Clock& clock, Listener& listener, std::span<const std::unique_ptr<Source>> sources, Duration notice);

  void start();
  void stop() { look_.stop(); }

 private:
  struct Heard {
    Clock::Time since;  // no silence is counted from before
    ByteCount arrived_bytes = 0;
  };
  void look(Clock::Time now, bool overslept);
  [[nodiscard]] Duration silence_of(Source& source, Clock::Time now);

  Listener& listener_;
  std::span<const std::unique_ptr<Source>> sources_;
  Duration notice_;
  std::vector<Heard> heard_;  // by source
  bool in_doubt_ = false;     // a source that owes something was silent for half of `notice` at the last look
  RegularLook look_;
};

}  // namespace shardwire::restore
