// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace shardwire::memory {

/// Runs copy jobs on its own worker threads, so that the session's thread never blocks in a long copy. Jobs start in
/// the order of submission; callers split long copies into slices so that the destructor stays quick.
/// Workers start on demand. A copier without workers runs jobs inside poll() instead.
/// Threads: jobs and `wake` run on workers; all members are for one thread (callbacks of poll() included).
class Copier {
 public:
  using Job = std::function<void()>;
  using Done = std::function<void(std::exception_ptr)>;

  /// At most `threads` workers. A worker calls `wake` whenever poll() may have work, and so does submit() if there are
  /// to be no workers; `wake` must not throw.
  explicit Copier(unsigned threads, std::function<void()> wake);
  /// Finishes the running jobs, drops the others; no `done` runs any more.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// `job` runs on a worker, then `done` inside poll() with the job's exception, or null.
  /// Errors: std::system_error if not even one worker can be started.
  void submit(Job job, Done done);
  /// Runs the `done` callbacks of the jobs that have finished so far and returns their number. A callback that throws
  /// ends the call; the others stay for the next call. Without workers, first runs one job.
  unsigned poll();
  /// Submitted jobs whose `done` has not run.
  [[nodiscard]] std::size_t pending() const;
  /// Threads started so far.
  [[nodiscard]] std::size_t workers() const { return workers_.size(); }

 private:
  struct Item {
    Job job;
    Done done;
    std::exception_ptr failure;
  };
  void start_worker();
  void work(const std::stop_token& stop);
  void run_next(std::unique_lock<std::mutex>& lock);
  void run_here();

  std::function<void()> wake_;
  unsigned threads_;
  mutable std::mutex mutex_;
  std::condition_variable_any queued_;
  std::deque<Item> queue_;
  std::deque<Item> finished_;
  std::size_t running_ = 0;            // workers that run a job
  std::vector<std::jthread> workers_;  // last: they use all members above
};

}  // namespace shardwire::memory
