// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "shardwire/types.hpp"

namespace shardwire::cli {

/// Shows the progress of a job of many members on standard error: a bar on a terminal, else a line from time to time.
class JobProgress {
 public:
  /// `shown`: false shows nothing.
  JobProgress(int members, int repeats, ByteCount needed_bytes, bool shown = true);
  ~JobProgress() { finish(); }
  JobProgress(const JobProgress&) = delete;
  JobProgress& operator=(const JobProgress&) = delete;

  void update(int member, const std::string& phase, int repeat, ByteCount done_bytes);
  /// Ends the line of the bar.
  void finish();

 private:
  struct Member {
    std::string phase;
    ByteCount done_bytes = 0;
  };
  [[nodiscard]] std::string describe(ByteCount done) const;
  void show(bool phase_changed);

  std::vector<Member> members_;
  int repeats_;
  int repeat_ = 0;
  ByteCount needed_bytes_;
  bool terminal_;
  bool silent_;
  bool bar_shown_ = false;
  std::string phase_;
  int tenths_ = -1;
  std::chrono::steady_clock::time_point shown_{};
};

}  // namespace shardwire::cli
