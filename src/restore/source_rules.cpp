// SPDX-License-Identifier: Apache-2.0
#include "restore/source_rules.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace shardwire::restore {

namespace {

// Sources of equal speed differ by less: by the share of a link, or of a processor, that each of them gets.
constexpr double much_slower = 4;

// A first failure is likely to be that of one connection. More in a row are likely to be of the network: 8 take 1.3 s.
constexpr Duration first_wait = std::chrono::milliseconds(10);

}  // namespace

using namespace std::chrono_literals;

RegularLook::RegularLook(Clock& clock, Duration notice, Look look)
    : clock_(clock),
      look_(std::move(look)),
      interval_(std::clamp<Duration>(notice / 20, 10ms, 250ms)),
      overslept_(3 * std::clamp<Duration>(notice / 10, 10ms, 250ms)),
      looked_(clock.now()),
      timer_(clock) {
}

void RegularLook::start() {
  timer_.start(interval_, [this] { look(); });
}

void RegularLook::stop() {
  stopped_ = true;
  timer_.stop();
}

void RegularLook::look() {
  const Clock::Time now = clock_.now();
  const bool overslept = now - looked_ > overslept_;
  looked_ = now;
  look_(now, overslept);
  if (!stopped_) start();
}

Silence::Found Silence::look(std::span<const Sample> samples, Clock::Time now, bool overslept) {
  if (overslept) {
    for (Heard& one : heard_) one.since = now;
  }
  Found found;
  bool in_doubt = false;
  for (const auto& source : sources_) {
    const Sample& sample = samples[source->index()];
    const Duration silence = silence_of(*source, sample, now);
    in_doubt = in_doubt || (sample.due && silence >= notice_ / 2);
    if (sample.due && silence >= notice_) {
      found.silent.push_back(source.get());
    } else if (silence >= notice_ / 2 + 2 * interval_) {  // was asked, and had time to answer
      found.doubtful.push_back(source.get());
    }
  }
  in_doubt_ = in_doubt;
  return found;
}

// A source that owes nothing is asked for a sign of life only while another one is silent, whose place it may have to take;
// then at once, however long it has sent nothing.
Duration Silence::silence_of(const Source& source, const Sample& sample, Clock::Time now) {
  Heard& heard = heard_[source.index()];
  const bool counts = sample.due || (in_doubt_ && !sample.nothing_more);
  if (sample.arrived_bytes != heard.arrived_bytes || !counts) heard = {now, sample.arrived_bytes};
  if (!counts) return {};
  const auto answered = source.heard(notice_ / 2);
  const Clock::Time since = sample.due ? heard.since : heard.since - notice_ / 2;
  return now - std::max(since, answered.value_or(now));
}

std::optional<Duration> Standstill::look(std::size_t source, const Sample& sample, Clock::Time now, bool overslept) {
  Last& last = last_[source];
  if (overslept || !sample.under_way || sample.arrived_bytes != last.arrived_bytes) {
    last = {now, sample.arrived_bytes};
    return std::nullopt;
  }
  const Duration lasted = now - last.moved;
  if (lasted < sample.patience) return std::nullopt;
  last.moved = now;
  return lasted;
}

void SlowSources::begin(Samples samples, Clock::Time now) {
  began_ = now;
  begin_.assign(samples.begin(), samples.end());
}

std::vector<std::size_t> SlowSources::look(Samples samples, Clock::Time now, bool overslept) {
  const double seconds = seconds_of(now - began_);
  const bool over = now - began_ >= notice_;
  note_paces(samples, seconds, !overslept && !over);
  if (!overslept && !over) return {};
  // A reader that slept knows how fast its sources are at least. It cannot tell how slow they are.
  std::vector<std::size_t> slow = overslept ? std::vector<std::size_t>() : slow_in(samples, seconds);
  begin(samples, now);
  return slow;
}

double SlowSources::pace_of(Samples samples, std::size_t source, double seconds) const {
  return static_cast<double>(samples[source].arrived_bytes - begin_[source].arrived_bytes) / seconds;
}

// A source that is done within a period was at least so fast.
void SlowSources::note_paces(Samples samples, double seconds, bool of_done) {
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    if (begin_[i].owed_bytes == 0 || (of_done && samples[i].owed_bytes > 0)) continue;
    best_pace_ = std::max(best_pace_, pace_of(samples, i, seconds));
  }
}

std::vector<std::size_t> SlowSources::slow_in(Samples samples, double seconds) const {
  std::vector<std::size_t> slow;
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    const double pace = pace_of(samples, i, seconds);
    const auto owed = static_cast<double>(samples[i].owed_bytes);
    if (owed > pace * seconds_of(notice_) && pace * much_slower < best_pace_) slow.push_back(i);
  }
  return slow;
}

void PathFailures::add(Rank source, std::size_t fabric, bool progressed, const std::string& why) {
  Failures& failures = failures_[source][fabric];
  if (progressed) failures.in_a_row = 0;
  ++failures.in_a_row;
  failures.why = why;
  if (failures.in_a_row > 1) wait_ = std::max(wait_, first_wait * (1 << std::min(failures.in_a_row - 2, max_in_a_row)));
}

std::map<std::size_t, std::string> PathFailures::failed_fabrics(Rank source) const {
  std::map<std::size_t, std::string> failed_fabrics;
  const auto found = failures_.find(source);
  if (found == failures_.end()) return failed_fabrics;
  for (const auto& [fabric, failures] : found->second) {
    if (failures.in_a_row < max_in_a_row) continue;
    failed_fabrics[fabric] = fmt::format("it failed {} times in a row: {}", failures.in_a_row, failures.why);
  }
  return failed_fabrics;
}

std::vector<Rank> PathFailures::standing() const {
  std::vector<Rank> holders;
  for (const auto& [holder, times] : standstills_) holders.push_back(holder);
  return holders;
}

Duration PathFailures::patience(Rank holder, Duration first) const {
  const auto found = standstills_.find(holder);
  return found == standstills_.end() ? first : first * (1 << std::min(found->second, max_in_a_row));
}

Duration PathFailures::take_wait() {
  return std::exchange(wait_, Duration::zero());
}

}  // namespace shardwire::restore
