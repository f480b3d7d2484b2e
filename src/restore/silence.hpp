// SPDX-License-Identifier: Apache-2.0
#pragma once

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
  struct Found {
    std::vector<Source*> silent;  ///< all silent sources
    /// Other sources that have not answered either since the first of `silent` was silent for half of `notice`, whether or
    /// not they owe something.
    std::vector<Source*> doubtful;
  };

  /// `notice`: silence that is found. A source that is silent for half of it is asked for a sign of life. `interval`: from one
  /// look to the next. Ownership: borrows sources.
  Silence(std::span<const std::unique_ptr<Source>> sources, Duration notice, Duration interval)
      : sources_(sources), notice_(notice), interval_(interval) {}

  void begin(Clock::Time now) { heard_.assign(sources_.size(), {now, 0}); }
  /// `samples`: by source.
  [[nodiscard]] Found look(std::span<const Sample> samples, Clock::Time now, bool overslept);

 private:
  struct Heard {
    Clock::Time since;  // no silence is counted from before
    ByteCount arrived_bytes = 0;
  };
  [[nodiscard]] Duration silence_of(const Source& source, const Sample& sample, Clock::Time now);

  std::span<const std::unique_ptr<Source>> sources_;
  Duration notice_;
  Duration interval_;
  std::vector<Heard> heard_;  // by source
  bool in_doubt_ = false;     // a source that owes something was silent for half of `notice` at the last look
};

}  // namespace shardwire::restore
