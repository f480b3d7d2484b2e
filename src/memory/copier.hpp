// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace shardwire::memory {

/// Runs copy jobs on its own worker threads so that the session's thread never blocks in a long copy. Jobs start in the
/// order of submission; callers cut long copies into slices so that cancel() and the destructor stay quick.
/// Threads: submit, cancel, poll and pending from one thread (callbacks of poll() included); jobs and `wake` run on
/// workers.
class Copier {
 public:
  using Job = std::function<void()>;
  using Done = std::function<void(std::exception_ptr)>;
  using Ticket = std::uint64_t;

  /// At least one worker. `wake` is called from a worker whenever poll() may have news; it must not throw.
  explicit Copier(unsigned threads, std::function<void()> wake);
  /// Finishes the running jobs, drops the queued ones; no `done` runs any more.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// `job` runs on a worker, then `done` inside poll() with what the job threw, or null. Tickets are never 0.
  Ticket submit(Job job, Done done);
  /// True when the job had not begun; neither it nor its `done` will run.
  bool cancel(Ticket ticket);
  /// Runs the `done` callbacks of the jobs that have finished by now; returns how many. One that throws ends the call;
  /// the others stay for the next.
  unsigned poll();
  /// Jobs submitted whose `done` has not run.
  [[nodiscard]] std::size_t pending() const;

 private:
  struct Item {
    Ticket ticket = 0;
    Job job;
    Done done;
    std::exception_ptr failure;
  };
  void work(const std::stop_token& stop);

  std::function<void()> wake_;
  mutable std::mutex mutex_;
  std::condition_variable_any queued_;
  std::deque<Item> queue_;  // ascending tickets
  std::deque<Item> finished_;
  std::size_t running_ = 0;
  Ticket last_ticket_ = 0;
  std::vector<std::jthread> workers_;  // last: they use everything above
};

}  // namespace shardwire::memory
