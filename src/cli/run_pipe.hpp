// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <string_view>

#include "cli/run_worker.hpp"

namespace shardwire::cli {

/// The writing end of the pipe from a member to the command: JSON lines. Progress is dropped if the pipe is full, so
/// that a slow reader never delays a member; the result waits.
class MemberPipe {
 public:
  /// `writing`: shared by all members with the same descriptor, so that lines do not interleave.
  MemberPipe(int descriptor, std::mutex& writing, int member);

  void progress(const MemberProgress& progress);
  /// A restore has waited for `what`; dropped if the pipe is full.
  void awaits(std::string_view what) { note("awaits", what); }
  /// Why a restore has failed; dropped if the pipe is full, since the result has it too.
  void failed(std::string_view why) { note("failed", why); }
  void result(const MemberResult& result);
  /// An event of a job with faults, never dropped. `fields`: of a JSON object.
  void event(std::string_view fields);

 private:
  void note(std::string_view key, std::string_view text);
  void write_all(std::string_view line);

  int descriptor_;
  std::mutex& writing_;  // also guards the following fields: the worker's thread and the session's both report
  int member_;
  std::string last_phase_;
  int last_repeat_ = -1;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace shardwire::cli
