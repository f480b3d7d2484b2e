// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "memory/sealed_memory.hpp"
#include "support/wake_event.hpp"
#include "transport/shm/attach.hpp"

namespace shardwire::transport::shm {

/// One read. Owners: the list of reads, and the thread that executes it.
struct Read {
  std::uint64_t id = 0;
  std::uint64_t endpoint = 0;
  std::shared_ptr<const memory::Mapping> mapping{};  ///< the source; null: see `published`
  PublishedMemory published{};
  std::vector<ReadRange> ranges{};
  std::atomic<bool> cancelled = false;
  Outcome outcome{};  ///< set once it has ended
};

/// Threads that execute reads, since the kernel copies in the calling thread. They start with the first read. Any
/// thread may call every member.
class Readers {
 public:
  /// Errors: throws Error{out_of_resources}.
  /// The destructor waits for the slices under way.
  Readers() = default;
  ~Readers();
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  /// Errors: throws Error{out_of_resources} if there is no thread and none can be started.
  void post(std::shared_ptr<Read> read);
  /// Adds a read that has ended without being executed.
  void finish(std::shared_ptr<Read> read);
  /// Makes the reads of an endpoint end soon.
  void cancel(std::uint64_t endpoint);
  /// Returns when no thread works for the endpoint any more, after one slice at most. Requires: its reads were
  /// cancelled.
  void wait(std::uint64_t endpoint);
  /// The reads that ended since the last call, in the order in which they ended.
  std::vector<std::shared_ptr<Read>> take_finished();
  /// Readable while there are ended reads.
  [[nodiscard]] int descriptor() const { return finished_event_.descriptor(); }

 private:
  void work();
  void add_finished(std::shared_ptr<Read> read);  // with the lock held

  support::WakeEvent finished_event_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::size_t idle_ = 0;
  std::deque<std::shared_ptr<Read>> waiting_;
  std::vector<std::shared_ptr<Read>> under_way_;
  std::vector<std::shared_ptr<Read>> finished_;
  std::vector<std::thread> threads_;
};

}  // namespace shardwire::transport::shm
