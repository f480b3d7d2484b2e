// SPDX-License-Identifier: Apache-2.0
#include "world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "loop.hpp"
#include "member.hpp"

namespace shardwire::simulation {

namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t max_events = 400'000;
constexpr Duration limit_of_calls = 22s;  // join_limit, and more
// By then the last attempt to connect to a host without power is given up.
constexpr Duration until_forgotten = Network::connecting_limit + 2s;

class World {
 public:
  World(const Schedule& schedule, const RunOptions& options)
      : schedule_(with_crash(schedule, options)),
        events_(options.bug == Bug::unseeded ? std::random_device()() : schedule.seed + 1, options.traced),
        network_(events_, schedule.delay, options.bug),
        fabrics_(network_),
        groups_(fabrics_),
        crash_(options.crash),
        job_{schedule_, events_, network_, fabrics_, groups_, failures_, options.logs, options.fails_over},
        members_(static_cast<std::size_t>(schedule.members)) {
    job_.published.resize(members_.size());
  }

  Findings run() {
    const std::size_t alarms_before = SimulatedLoop::alarms();
    for (const Action& action : schedule_.actions) plan(action);
    const bool ended = advance(end_of_actions()) && advance(rest());
    if (ended) {
      for (const auto& process : processes_) process->resume();
      each([](Member& member) { member.check_quiet(); });
      each([](Member& member) { member.retire_all(); });
      advance(3s);
      each([](Member& member) { member.close(); });
      advance(5s);
    }
    std::vector<std::uint64_t> events_of;
    for (const auto& member : members_) events_of.push_back(member ? member->process().events() : 0);
    members_.clear();
    ended_.clear();
    events_.clear();
    if (ended) check_nothing_left(alarms_before);
    for (const std::string& what : events_.escaped()) failures_.push_back("an exception reached a loop: " + what);
    return {failures_, job_.restores,          job_.avoidable,         events_.count(),
            events_of, events_.trace().hash(), events_.trace().text(), job_.endings};
  }

 private:
  [[nodiscard]] Duration end_of_actions() const {
    Duration last{};
    for (const Action& action : schedule_.actions) last = std::max(last, action.at);
    return last + 1ms;
  }
  // Time in which every call has ended.
  [[nodiscard]] Duration rest() const {
    const Duration calls = std::max(limit_of_calls, schedule_.deadline * (schedule_.resumes ? 2 : 1));
    Duration rest = calls + 3s;
    if (schedule_.must_complete) return rest;
    for (const Action& action : schedule_.actions) {
      rest = std::max(rest, calls + action.lasts + until_forgotten);
    }
    return rest;
  }

  bool advance(Duration time) {
    const Clock::Time end = events_.now() + time;
    while (events_.step(end)) {
      crash();
      if (events_.count() < max_events) continue;
      job_.fail(fmt::format("{} events, and no end", max_events));
      return false;
    }
    return true;
  }

  void crash() {
    if (!crash_) return;
    const auto& member = members_[static_cast<std::size_t>(crash_->member)];
    if (!member || !member->alive() || member->process().events() < crash_->after) return;
    member->end(crash_->silent);
    crash_.reset();
  }

  template <typename Visit>
  void each(Visit visit) {
    for (const auto& member : members_) {
      if (!member || !member->alive()) continue;
      events_.after({}, &member->process(), "end", [&member = *member, visit] { visit(member); });
    }
    advance(1ms);
  }

  void plan(const Action& action) {
    events_.after(action.at, nullptr, "action", [this, action] { act(action); });
  }

  void act(const Action& action) {
    events_.trace().line(events_.now_ns(), 0, "action {}", to_text(action));
    const Clock::Time until = events_.now() + action.lasts;
    switch (action.kind) {
      case Action::Kind::cut: return network_.cut(action.member, action.other, until);
      case Action::Kind::slow: return network_.slow_down(action.member, action.times, until);
      case Action::Kind::hole: return fabrics_.open_hole(action.member, action.other, until);
      case Action::Kind::corrupt: return fabrics_.corrupt(action.member, until);
      default: break;
    }
    auto& member = members_[static_cast<std::size_t>(action.member)];
    switch (action.kind) {
      case Action::Kind::join:
        if (!member) start(action.member);
        return;
      case Action::Kind::restart:
        if (!member || member->alive()) return;
        ended_.push_back(std::move(member));  // events under way name it
        start(action.member);
        return plan_publication(action.member);
      case Action::Kind::kill:
      case Action::Kind::vanish:
        if (member) member->end(action.kind == Action::Kind::vanish);
        return;
      case Action::Kind::reset:
        if (const auto& other = members_[static_cast<std::size_t>(action.other)]; member && other) {
          fabrics_.reset(member->process(), other->process());
        }
        return;
      case Action::Kind::stop:
        if (!member || !member->alive()) return;
        member->process().stop();
        events_.after(action.lasts, nullptr, "continue", [&process = member->process()] { process.resume(); });
        return;
      default:
        if (!member) return waiting_.push_back(action);
        events_.after({}, &member->process(), "act", [&member = *member, action] { member.act(action); });
    }
  }

  void start(int member) {
    processes_.push_back(std::make_unique<Process>(events_, static_cast<int>(processes_.size()) + 1,
                                                   schedule_.host_of[static_cast<std::size_t>(member)]));
    members_[static_cast<std::size_t>(member)] =
        std::make_unique<Member>(job_, *processes_.back(), member, processes_.size());
    const auto own = [&](const Action& action) { return action.member == member; };
    const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), std::not_fn(own));
    for (const Action& action : std::vector(first, waiting_.end())) act(action);
    waiting_.erase(first, waiting_.end());
  }

  // A process that comes back publishes the last step of its predecessors.
  void plan_publication(int member) {
    int step = 1;
    for (const Action& action : schedule_.actions) {
      const bool sets = action.kind == Action::Kind::publish || action.kind == Action::Kind::update;
      if (sets && events_.now() - Events::start >= action.at) step = std::max(step, action.other);
    }
    plan_now({.kind = Action::Kind::publish, .member = member, .other = step});
  }
  void plan_now(const Action& action) {
    events_.after(1ms, nullptr, "action", [this, action] { act(action); });
  }

  void check_nothing_left(std::size_t alarms_before) {
    if (network_.open_sockets() > 0) job_.fail(fmt::format("{} sockets are left", network_.open_sockets()));
    if (fabrics_.open_ports() > 0) job_.fail(fmt::format("{} fabrics are left", fabrics_.open_ports()));
    if (groups_.open_groups() > 0) job_.fail(fmt::format("{} groups are left", groups_.open_groups()));
    if (fabrics_.regions() > 0) job_.fail(fmt::format("{} regions are left", fabrics_.regions()));
    const std::size_t alarms = SimulatedLoop::alarms() - alarms_before;
    if (alarms > 0) job_.fail(fmt::format("{} alarms are left", alarms));
    const std::size_t owners = count_kept(job_.owners);
    if (owners > 0) job_.fail(fmt::format("{} owners of memory are left", owners));
  }

  // No restore has to complete if a member crashes.
  static Schedule with_crash(Schedule schedule, const RunOptions& options) {
    if (!options.crash) return schedule;
    schedule.must_complete = false;
    schedule.crashes = options.crash->member;
    return schedule;
  }

  const Schedule schedule_;
  Events events_;
  Network network_;
  FabricNetwork fabrics_;
  GroupNetwork groups_;
  std::vector<std::string> failures_;
  std::optional<Crash> crash_;
  Job job_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<Action> waiting_;                 // for their members to begin
  std::vector<std::unique_ptr<Member>> ended_;  // replaced by later processes
};

}  // namespace

Findings run(const Schedule& schedule, const RunOptions& options) {
  return World(schedule, options).run();
}

}  // namespace shardwire::simulation
