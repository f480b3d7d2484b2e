// SPDX-License-Identifier: Apache-2.0
#include "cli/run_progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/text.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using namespace std::chrono_literals;

// Phases in a member's order; the job is in the phase of its last member. Waiting does not count as a phase of the job.
struct Phase {
  const char* name;
  const char* text;
};
constexpr Phase phases[] = {{"join", "joining"},           {"allocate", "allocating"},
                            {"fill", "making values"},     {"restore", "restoring"},
                            {"bind", "looking for paths"}, {"check", "checking every element"}};

}  // namespace

JobProgress::JobProgress(int members, int repeats, ByteCount needed_bytes, bool shown)
    : members_(static_cast<std::size_t>(members)),
      repeats_(repeats),
      needed_bytes_(needed_bytes),
      terminal_(::isatty(STDERR_FILENO) == 1),
      silent_(!shown) {
}

void JobProgress::update(int member, const std::string& phase, int repeat, ByteCount done_bytes) {
  if (member < 0 || member >= static_cast<int>(members_.size())) return;
  Member& one = members_[static_cast<std::size_t>(member)];
  if (repeat > repeat_) {
    repeat_ = repeat;
    for (Member& other : members_) other.done_bytes = 0;
  }
  one.phase = phase;
  if (phase == "restore") one.done_bytes = done_bytes;
  std::string now;
  for (const Phase& known : phases) {
    const auto in_it = [&](const Member& m) { return m.phase == known.name; };
    if (std::any_of(members_.begin(), members_.end(), in_it)) {
      now = known.text;
      break;
    }
  }
  if (now.empty()) return;
  const bool changed = now != phase_;
  phase_ = now;
  show(changed);
}

std::string JobProgress::describe(ByteCount done) const {
  std::string text = repeats_ > 1 ? fmt::format("restore {} of {}: {}", repeat_ + 1, repeats_, phase_) : phase_;
  if (phase_ == "restoring" && needed_bytes_ > 0) {
    text += fmt::format(", {} of {}", human_bytes(static_cast<double>(done)),
                        human_bytes(static_cast<double>(needed_bytes_)));
  }
  return text;
}

void JobProgress::show(bool phase_changed) {
  if (silent_) return;
  ByteCount done = 0;
  for (const Member& member : members_) done += member.done_bytes;
  const double share =
      needed_bytes_ == 0 ? 1 : std::min(1.0, static_cast<double>(done) / static_cast<double>(needed_bytes_));
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    if (!phase_changed && now - shown_ < 100ms) return;
    constexpr int width = 30;
    const int full = phase_ == "joining" || phase_ == "allocating" || phase_ == "making values"
                         ? 0
                         : static_cast<int>(share * width);
    support::write_stderr("\r\033[K[{:=<{}}{: <{}}] {}", "", full, "", width - full, describe(done));
    std::fflush(stderr);
    bar_shown_ = true;
    shown_ = now;
    return;
  }
  // A line per phase; within a long phase one per tenth, at most one a second, and one every five seconds.
  const int tenths = static_cast<int>(share * 10);
  const bool advanced = phase_ == "restoring" && tenths > tenths_ && now - shown_ > 1s;
  if (!phase_changed && !advanced && now - shown_ < 5s) return;
  tenths_ = tenths;
  shown_ = now;
  support::write_stderr("shardwire: {}\n", describe(done));
}

void JobProgress::finish() {
  if (bar_shown_) support::write_stderr("\r\033[K");
  bar_shown_ = false;
}

}  // namespace shardwire::cli
