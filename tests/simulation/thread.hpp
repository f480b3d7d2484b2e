// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "bugs.hpp"
#include "events.hpp"
#include "runtime/waiting.hpp"

namespace shardwire::simulation {

/// Passed from one thread to another. Unlike a semaphore it never spins: of two threads that take turns, the one that waits
/// would only keep the other from running.
class Baton {
 public:
  void give();
  void take();

 private:
  std::mutex mutex_;
  std::condition_variable given_;
  bool there_ = false;  // guarded by mutex_
};

/// A thread of the operating system, which runs one body after the other.
class Carrier {
 public:
  /// One that is idle. From any thread.
  static std::unique_ptr<Carrier> take();
  /// Waits for the end of its body.
  static void give_back(std::unique_ptr<Carrier> carrier);

  Carrier();
  /// Requires: idle.
  ~Carrier();
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  void begin(std::function<void()> body);
  [[nodiscard]] std::thread::id id() const { return thread_.get_id(); }

 private:
  std::function<void()> body_;  // empty: the thread is to end
  Baton begun_;
  Baton over_;
  std::thread thread_;  // last: it uses the others
};

/// A thread of a simulated process beside that of its loop. Only one thread of the simulation runs at a time: this one
/// runs in events of its process, until it waits.
class SimulatedThread final : public Waiting {
 public:
  SimulatedThread(Events& events, Process& process, Bug bug, std::function<void()> body);
  /// Requires: it has ended.
  ~SimulatedThread();
  SimulatedThread(const SimulatedThread&) = delete;
  SimulatedThread& operator=(const SimulatedThread&) = delete;

  /// Runs in an event of the process soon. Keeps itself until its end.
  static void start(const std::shared_ptr<SimulatedThread>& thread);
  /// The session of its process has ended, so that nothing keeps it waiting: runs it to its end, in no event.
  void run_to_end();
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] std::thread::id id() const { return carrier_->id(); }

 private:
  bool until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) override;
  void run();
  void resume();
  void resume_later(Duration after);

  Events& events_;
  Process& process_;
  Bug bug_;
  std::function<void()> body_;
  std::shared_ptr<SimulatedThread> self_;         // until its end
  std::uint64_t iteration_ = 0;                   // looks whether what it waits for is there
  const std::function<bool()>* ready_ = nullptr;  // what it waits for; null: it does not wait
  std::uint64_t waits_ = 0;                       // number of the last wait
  bool resuming_ = false;                         // an event will resume it
  bool alone_ = false;                            // it runs to its end
  bool ended_ = false;
  Baton turn_;      // of this thread
  Baton returned_;  // to the thread of the events
  std::unique_ptr<Carrier> carrier_ = Carrier::take();
};

}  // namespace shardwire::simulation
