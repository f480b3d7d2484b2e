// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "random.hpp"
#include "runtime/clock.hpp"
#include "trace.hpp"

namespace shardwire::simulation {

class Events;
class SimulatedThread;

/// One simulated process: the events of its sessions run one after the other, none while it is stopped, and none once
/// it has ended.
class Process {
 public:
  Process(Events& events, int number, int host) : events_(events), number_(number), host_(host) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  [[nodiscard]] int number() const { return number_; }
  [[nodiscard]] int host() const { return host_; }
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool stopped() const { return stopped_; }
  /// As by SIGSTOP and SIGCONT: its events wait meanwhile.
  void stop();
  void resume();
  /// No event of it runs any more.
  void end() {
    ended_ = true;
    waiting_.clear();
  }
  /// Number of its events so far.
  [[nodiscard]] std::uint64_t events() const { return count_; }
  /// Time for which it has been stopped so far.
  [[nodiscard]] Duration stopped_for() const;

  /// Tasks that run after every event, as the iterations of its loop.
  std::uint64_t each_iteration(std::function<void()> task);
  void no_iteration(std::uint64_t number);

  // Threads of it beside that of its loop; each adds and removes itself.
  void add(SimulatedThread& thread) { threads_.push_back(&thread); }
  void remove(SimulatedThread& thread) { std::erase(threads_, &thread); }
  /// Runs them to their ends. Call it once all sessions of the process have ended.
  void end_threads();

 private:
  friend class Events;
  void run(const std::function<void()>& task);

  Events& events_;
  int number_;
  int host_;
  bool ended_ = false;
  bool stopped_ = false;
  std::uint64_t count_ = 0;
  Clock::Time stopped_at_{};
  Duration stopped_for_{};
  std::vector<std::function<void()>> waiting_;  // while it is stopped
  struct Iteration {
    std::uint64_t number;
    std::function<void()> task;
  };
  std::vector<std::shared_ptr<Iteration>> iterations_;  // owners: this, and run() while it calls one
  std::uint64_t next_iteration_ = 1;
  std::vector<SimulatedThread*> threads_;
};

/// All events of a simulation, in the order of their times. The seed decides between those of one time.
class Events {
 public:
  /// `traced`: the trace is kept.
  explicit Events(std::uint64_t seed, bool traced = true) : random_(seed), trace_(traced) {}

  [[nodiscard]] Clock::Time now() const { return now_; }
  [[nodiscard]] std::int64_t now_ns() const { return (now_ - start).count(); }
  [[nodiscard]] Random& random() { return random_; }
  [[nodiscard]] Trace& trace() { return trace_; }
  [[nodiscard]] const Trace& trace() const { return trace_; }
  /// Runs `task` after `delay`, in `process` if it is not null. `what`: for the trace.
  void after(Duration delay, Process* process, std::string_view what, std::function<void()> task);
  void at(Clock::Time time, Process* process, std::string_view what, std::function<void()> task);
  /// Runs the next event; false if there is none until `end`. The time is then `end`.
  bool step(Clock::Time end);
  /// Drops all events: what they capture uses the network.
  void clear() { std::exchange(queue_, {}).clear(); }
  [[nodiscard]] std::uint64_t count() const { return ran_; }
  /// The process whose event this is; null: none.
  [[nodiscard]] Process* running() const { return running_; }
  /// Exceptions that came out of events. A loop lets none out.
  [[nodiscard]] const std::vector<std::string>& escaped() const { return escaped_; }

  static constexpr Clock::Time start{std::chrono::hours(1)};

 private:
  friend class Process;
  struct Event {
    Clock::Time at;
    std::uint64_t tie;
    Process* process;
    std::string_view what;
    std::function<void()> task;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const { return a.at != b.at ? a.at > b.at : a.tie > b.tie; }
  };
  void guarded(Process* process, const std::function<void()>& task);

  Random random_;
  Trace trace_;
  Clock::Time now_ = start;
  Process* running_ = nullptr;
  std::vector<Event> queue_;  // a heap
  std::uint64_t ran_ = 0;
  std::vector<std::string> escaped_;
};

}  // namespace shardwire::simulation
