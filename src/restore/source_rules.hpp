// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "restore/source.hpp"
#include "runtime/clock.hpp"
#include "shardwire/options.hpp"
#include "shardwire/types.hpp"

namespace shardwire::restore {

/// The state of one source when an attempt looks at all of them.
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

/// Finds sources that have become a bottleneck: each delivers at less than a quarter of the best pace that this restore has
/// seen, its own earlier one included, and at that pace needs longer than `notice` for what it still owes. A restore whose
/// sources were slow from the first byte on has nothing to compare with, and finds none.
/// Threads: loop thread only.
class SlowSources {
 public:
  using Samples = std::span<const Sample>;  ///< by source

  explicit SlowSources(Duration notice) : notice_(notice) {}

  /// Begins a period.
  void begin(Samples samples, Clock::Time now);
  /// The slow ones, at the end of each period of `notice`; else none.
  [[nodiscard]] std::vector<std::size_t> look(Samples samples, Clock::Time now, bool overslept);

 private:
  [[nodiscard]] double pace_of(Samples samples, std::size_t source, double seconds) const;
  void note_paces(Samples samples, double seconds, bool of_done);
  [[nodiscard]] std::vector<std::size_t> slow_in(Samples samples, double seconds) const;

  Duration notice_;
  std::vector<Sample> begin_;  // of the period, by source
  Clock::Time began_{};        // the period
  double best_pace_ = 0;       // bytes per second
};

/// Connections to sources that have failed although the sources are alive, over all attempts of one restore. Decides when the next
/// one connects again, and over which fabrics no longer. Pure, apart from what it remembers.
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
  /// How long the next attempt waits before it connects. Doubles with each failure in a row. Counts what was added since the
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
