// SPDX-License-Identifier: Apache-2.0
#include "cli/run_progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string_view>
#include <system_error>

#include "cli/text.hpp"
#include "support/list_of.hpp"
#include "support/stderr.hpp"

namespace shardwire::cli {
namespace {

using namespace std::chrono_literals;

// Phases in a member's order; the job is in the phase of its last member. Waiting does not count as a phase of the job.
struct Phase {
  std::string_view name;
  const char* text;
  bool moves = false;  // bytes, which are counted
};
constexpr Phase phases[] = {{"join", "joining"},           {"allocate", "allocating"},
                            {"fill", "making values"},     {"restore", "restoring", true},
                            {"bind", "looking for paths"}, {"check", "checking every element"},
                            {"measure", "measuring", true}};
constexpr int join_phase = 0;
constexpr int restore_phase = 3;
constexpr int bind_phase = 4;
constexpr int measure_phase = 6;
static_assert(phases[join_phase].name == "join" && phases[restore_phase].name == "restore" &&
              phases[bind_phase].name == "bind" && phases[measure_phase].name == "measure");

// "8 s", "3 min 20 s", "2 h 5 min"
std::string whole_seconds(double seconds) {
  constexpr double longest = 1e9;
  const auto whole = std::llround(std::min(seconds, longest));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? std::size_t{size.ws_col} : 80;
}

}  // namespace

std::string_view awaited_of(std::string_view log_line) {
  constexpr std::string_view waited = " has waited ";
  constexpr std::string_view unit = " s for ";
  const std::size_t begin = log_line.find(waited);
  const std::size_t end = begin == std::string_view::npos ? begin : log_line.find(unit, begin + waited.size());
  return end == std::string_view::npos ? std::string_view() : log_line.substr(end + unit.size());
}

std::optional<int> joined_of(std::string_view log_line) {
  int numbers[2] = {};
  for (int i = 0; i < 2; ++i) {
    const std::string_view before = i == 0 ? "member " : " of ";
    if (!log_line.starts_with(before)) return std::nullopt;
    log_line.remove_prefix(before.size());
    const auto [end, error] = std::from_chars(log_line.data(), log_line.data() + log_line.size(), numbers[i]);
    if (error != std::errc()) return std::nullopt;
    log_line.remove_prefix(static_cast<std::size_t>(end - log_line.data()));
  }
  return log_line.starts_with(" joined") ? std::optional(numbers[0]) : std::nullopt;
}

JobProgress::JobProgress(int members, int repeats, ByteCount needed_bytes, bool shown)
    : members_(static_cast<std::size_t>(members)),
      repeats_(repeats),
      needed_bytes_(needed_bytes),
      terminal_(::isatty(STDERR_FILENO) == 1),
      silent_(!shown) {
}

void JobProgress::begin_joining(WallClock::time_point now) {
  for (Member& one : members_) one.phase = join_phase;
  tick(now);
}

void JobProgress::update(int member, const std::string& phase, int repeat, ByteCount done_bytes,
                         WallClock::time_point now) {
  if (member < 0 || member >= static_cast<int>(members_.size())) return;
  Member& one = members_[static_cast<std::size_t>(member)];
  const auto known =
      std::find_if(std::begin(phases), std::end(phases), [&](const Phase& other) { return other.name == phase; });
  one.waits = known == std::end(phases);
  if (one.waits || repeat < repeat_) return;
  if (repeat > repeat_) {
    repeat_ = repeat;
    std::fill(members_.begin(), members_.end(), Member{});
  }
  const int number = static_cast<int>(known - std::begin(phases));
  if (number != one.phase || done_bytes != one.done_bytes) one.awaited.clear();
  one.phase = number;
  if (phases[number].moves) one.done_bytes = done_bytes;
  tick(now);
}

void JobProgress::note_awaited(int member, const std::string& what) {
  if (member < 0 || member >= static_cast<int>(members_.size())) return;
  if (std::ranges::all_of(members_, [](const Member& one) { return one.awaited.empty(); })) awaited_shown_ = false;
  members_[static_cast<std::size_t>(member)].awaited = printable(what);
}

void JobProgress::note_failure(const std::string& message, WallClock::time_point now) {
  if (!failure_.empty()) return;
  failure_ = printable(message);
  failed_ = now;
  awaited_shown_ = false;
}

void JobProgress::leave(int member) {
  if (member < 0 || member >= static_cast<int>(members_.size())) return;
  members_[static_cast<std::size_t>(member)].phase = -1;
}

void JobProgress::tick(WallClock::time_point now) {
  constexpr auto none = static_cast<int>(std::size(phases));
  int phase = none;
  for (const Member& one : members_) {
    if (!one.waits && one.phase >= 0) phase = std::min(phase, one.phase);
  }
  const bool changed = phase != none && phase != phase_;
  if (changed) {
    phase_ = phase;
    phase_began_ = now;
    awaited_shown_ = false;
  }
  if (silent_ || phase_ < 0) return;
  if (terminal_) {
    if (changed || now - shown_ >= 100ms) draw(now);
    return;
  }
  const bool begins = changed && repeat_ == 0 && phase_ != measure_phase;
  if (changed && phase_ == measure_phase) shown_ = now;
  const bool first_awaited = !awaited_shown_ && !awaited(now).empty();
  if (!begins && !first_awaited && now - shown_ < 10s) return;
  awaited_shown_ = awaited_shown_ || first_awaited;
  shown_ = now;
  support::write_stderr("shardwire: {}\n", describe(now));
}

ByteCount JobProgress::received_bytes() const {
  ByteCount done = 0;
  for (const Member& one : members_) done += one.done_bytes;
  return done;
}

// "; waiting for rank 2": ranks that are still in the phase of the job after others have left it. Empty if they are many.
// While they restore, they wait for a source themselves: "; rank 5 waits for 16.8 MB from source rank 2 (10.0.0.7:51234)" if
// one of them has named it, else "; rank 5 has not finished". Before that the failure, if the job has not ended with it.
std::string JobProgress::awaited(WallClock::time_point now) const {
  if (now - std::max(phase_began_, failed_) < 2s) return {};
  return (failure_.empty() ? "" : "; failed: " + failure_) + awaited_ranks();
}

std::string JobProgress::awaited_ranks() const {
  constexpr std::size_t max_named = 4;
  std::vector<int> ranks;
  bool others = false;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Member& one = members_[i];
    const bool works = one.phase == phase_ && !one.waits;
    if (works && !one.awaited.empty()) return fmt::format("; rank {} waits for {}", i, one.awaited);
    if (works) ranks.push_back(static_cast<int>(i));
    others = others || one.phase > phase_ || (one.phase == phase_ && one.waits);
  }
  if (!others || ranks.empty() || ranks.size() > max_named) return {};
  const bool one = ranks.size() == 1;
  const std::string names = fmt::format("rank{} {}", one ? "" : "s", support::runs_of(ranks));
  if (phase_ == restore_phase || phase_ == bind_phase) {
    return fmt::format("; {} {} not finished", names, one ? "has" : "have");
  }
  return "; waiting for " + names;
}

std::string JobProgress::describe(WallClock::time_point now) const {
  std::string text = phases[phase_].text;
  if (repeats_ > 1) text = fmt::format("restore {} of {}: {}", repeat_ + 1, repeats_, text);
  if (phases[phase_].moves && needed_bytes_ > 0) {
    const ByteCount done = received_bytes();
    text += fmt::format(", {} of {}", human_bytes(done), human_bytes(needed_bytes_));
    const double seconds = std::chrono::duration<double>(now - phase_began_).count();
    if (seconds >= 1 && done > 0 && done < needed_bytes_ && failure_.empty()) {
      const double rate = static_cast<double>(done) / seconds;
      text += fmt::format(", {}, {} left", human_speed(rate),
                          whole_seconds(static_cast<double>(needed_bytes_ - done) / rate));
    }
  }
  return text + awaited(now);
}

void JobProgress::draw(WallClock::time_point now) {
  constexpr int width = 20;
  double share = phase_ < restore_phase ? 0 : 1;
  if (needed_bytes_ > 0) share = static_cast<double>(received_bytes()) / static_cast<double>(needed_bytes_);
  const int full = static_cast<int>(std::min(1.0, share) * width);
  const std::string line = fmt::format("[{:=<{}}{: <{}}] {}", "", full, "", width - full, describe(now));
  support::write_stderr("\r\033[K{}", line.substr(0, terminal_columns() - 1));
  bar_shown_ = true;
  shown_ = now;
}

void JobProgress::finish() {
  if (bar_shown_) support::write_stderr("\r\033[K");
  bar_shown_ = false;
}

}  // namespace shardwire::cli
