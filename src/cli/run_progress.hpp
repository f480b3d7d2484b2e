// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::cli {

/// "16.8 MB from source rank 2 (10.0.0.7:51234)" of the line that a session logs about a restore that waits; empty for
/// other lines.
std::string_view awaited_of(std::string_view log_line);
/// The member of "member 2 of 3 joined from ..", which member 0 logs; empty for other lines.
std::optional<int> joined_of(std::string_view log_line);

/// Shows the progress of a job of many members on standard error: a bar on a terminal, elsewhere a line for each phase of
/// the first restore, and a line each ten seconds. The phase "measure", of `shardwire perf`, has no line when it begins. A
/// phase that lasts names the ranks that have not finished it, and what the first of them waits for. If the job goes on after
/// a failure, its lines have the failure and no time left.
class JobProgress {
 public:
  using WallClock = std::chrono::steady_clock;

  /// `shown`: false shows nothing.
  JobProgress(int members, int repeats, ByteCount needed_bytes, bool shown = true);
  ~JobProgress() { finish(); }
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  /// All members join. Until then a member is unknown before its first update.
  void begin_joining(WallClock::time_point now = WallClock::now());
  void update(int member, const std::string& phase, int repeat, ByteCount done_bytes,
              WallClock::time_point now = WallClock::now());
  /// The member's restore has waited for `what`. Shown until it goes on.
  void note_awaited(int member, const std::string& what);
  /// The restore of a member has failed, as `message` tells. Only the first failure is shown.
  void note_failure(const std::string& message, WallClock::time_point now = WallClock::now());
  /// The member's process has ended: nobody waits for it.
  void leave(int member);
  /// Shows what changes without an update. Call it about twice a second.
  void tick(WallClock::time_point now = WallClock::now());
  /// Ends the line of the bar.
  void finish();

 private:
  struct Member {
    int phase = -1;  ///< the last one of this restore; -1: none yet
    bool waits = false;
    ByteCount done_bytes = 0;
    std::string awaited{};
  };
  [[nodiscard]] ByteCount received_bytes() const;
  [[nodiscard]] std::string awaited(WallClock::time_point now) const;
  [[nodiscard]] std::string awaited_ranks() const;
  [[nodiscard]] std::string describe(WallClock::time_point now) const;
  void draw(WallClock::time_point now);

  std::vector<Member> members_;
  int repeats_;
  int repeat_ = 0;
  ByteCount needed_bytes_;
  bool terminal_;
  bool silent_;
  bool bar_shown_ = false;
  int phase_ = -1;
  WallClock::time_point phase_began_{};
  bool awaited_shown_ = false;  // in this phase, or since the failure
  std::string failure_;         // the first one
  WallClock::time_point failed_{};
  WallClock::time_point shown_{};
};

}  // namespace shardwire::cli
