// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace shardwire::memory {

/// Runs copy jobs on its own worker threads, so that the session's thread never blocks in a long copy. Jobs start in
/// the order of submission; callers split long copies into slices so that cancel() and the destructor stay quick.
/// Workers start on demand. A copier without workers runs jobs and parts inside poll() instead.
/// Threads: jobs, parts and `wake` run on workers; all members are for one thread (callbacks of poll() included).
class Copier {
 public:
  using Job = std::function<void()>;
  using Done = std::function<void(std::exception_ptr)>;
  using Ticket = std::uint64_t;
  using PartWork = std::function<void(std::size_t index)>;

  /// A job in parts that several workers share.
  /// Threads: any.
  class SharedJob {
   public:
    /// Parts that have begun finish, no other begins; `done` still runs.
    void stop() { stopped_.store(true, std::memory_order_relaxed); }
    /// Number of completed parts. A thread that sees a part counted also sees its writes.
    [[nodiscard]] std::size_t finished() const { return finished_.load(std::memory_order_acquire); }

   private:
    friend class Copier;
    std::size_t count_ = 0;
    PartWork part_;
    Done done_;
    std::atomic<bool> stopped_ = false;
    std::atomic<std::size_t> next_ = 0;
    std::atomic<std::size_t> finished_ = 0;
    // Guarded by the copier's mutex.
    unsigned width_ = 1;
    unsigned workers_ = 0;
    bool open_ = true;  // accepts workers
    std::exception_ptr failure_;
  };

  /// At most `threads` workers. A worker calls `wake` whenever poll() may have work, and so does submit() if there are
  /// to be no workers; `wake` must not throw.
  explicit Copier(unsigned threads, std::function<void()> wake);
  /// Finishes the running jobs and parts, drops the others; no `done` runs any more.
  ~Copier();
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  /// `job` runs on a worker, then `done` inside poll() with the job's exception, or null. Tickets are never 0.
  /// Errors: std::system_error if not even one worker can be started.
  Ticket submit(Job job, Done done);
  /// Runs part(0) .. part(count - 1), each once, on up to `width` workers at a time, begun in that order; then `done`
  /// once inside poll() with the first exception, which stops the parts that have not begun, or null. Single parts
  /// cause no wake-up. Between parts, workers also take other jobs, in turn.
  /// Ownership: caller and copier share the result. Errors: as submit().
  std::shared_ptr<SharedJob> submit_shared(std::size_t count, unsigned width, PartWork part, Done done);
  /// True if the job had not begun; neither it nor its `done` will run.
  bool cancel(Ticket ticket);
  /// Runs the `done` callbacks of the jobs that have finished so far and returns their number. A callback that throws
  /// ends the call; the others stay for the next call. Without workers, first runs one job, or the parts of one.
  unsigned poll();
  /// Submitted jobs whose `done` has not run; a shared job counts once.
  [[nodiscard]] std::size_t pending() const;
  /// Threads started so far.
  [[nodiscard]] std::size_t workers() const { return workers_.size(); }

 private:
  struct Item {
    Ticket ticket = 0;
    Job job;
    Done done;
    std::exception_ptr failure;
  };
  void start_workers(std::size_t more);
  void work(const std::stop_token& stop);
  void run_next(std::unique_lock<std::mutex>& lock);
  void share_next(std::unique_lock<std::mutex>& lock, const std::stop_token& stop);
  bool run_parts(SharedJob& shared, const std::stop_token& stop);
  void finish(SharedJob& shared, std::unique_lock<std::mutex>& lock);
  void run_here();

  std::function<void()> wake_;
  unsigned threads_;
  mutable std::mutex mutex_;
  std::condition_variable_any queued_;
  std::deque<Item> queue_;                         // ascending tickets
  std::deque<std::shared_ptr<SharedJob>> shared_;  // only those open to workers
  std::deque<Item> finished_;
  bool job_is_next_ = true;          // without workers: jobs and parts alternate, as in work()
  std::size_t running_ = 0;          // workers that run a job or parts
  std::size_t unfinished_jobs_ = 0;  // submitted, shared or not, and not in finished_ yet
  Ticket last_ticket_ = 0;
  std::atomic<std::size_t> waiting_ = 0;  // size of queue_, for workers between two parts
  std::vector<std::jthread> workers_;     // last: they use all members above
};

}  // namespace shardwire::memory
