// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "shardwire/options.hpp"
#include "shardwire/types.hpp"

namespace shardwire::restore {

/// Connections to sources that have failed although the sources are alive, over all runs of one restore. Decides when the next
/// run connects again, and over which fabrics no longer. Pure, apart from what it remembers.
/// Threads: loop thread only.
class PathFailures {
 public:
  /// A fabric is used no longer for a source after so many failures in a row.
  static constexpr int max_in_a_row = 8;

  /// The connection to this holder over this fabric has failed. `progressed`: it had carried bytes, so that the count begins
  /// anew. `why`: for people.
  void add(Rank holder, std::size_t fabric, bool progressed, const std::string& why);
  /// Fabrics that are used no longer for this holder, with the reasons.
  [[nodiscard]] std::map<std::size_t, std::string> failed_fabrics(Rank holder) const;
  /// A connection to this holder was given up although it had not failed: nothing came over it.
  void stood_still(Rank holder) { ++standstills_[holder]; }
  /// Holders of which one did: the last to be chosen in this restore.
  [[nodiscard]] std::vector<Rank> standing() const;
  /// How long nothing need come over a connection to this holder: `first`, and twice as long after each standstill in this
  /// restore, since what seemed to stand may be very slow.
  [[nodiscard]] Duration patience(Rank holder, Duration first) const;
  /// How long the next run waits before it connects. Doubles with each failure in a row. Counts what was added since the
  /// last call.
  [[nodiscard]] Duration take_wait();

 private:
  struct Failures {
    int in_a_row = 0;
    std::string why;
  };
  std::map<Rank, std::map<std::size_t, Failures>> failures_;  // by holder and fabric
  std::map<Rank, int> standstills_;
  Duration wait_{};
};

}  // namespace shardwire::restore
