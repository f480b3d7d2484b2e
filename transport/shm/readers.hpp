// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "transport/shm/attach.hpp"
#include "transport/shm/sealed_memory.hpp"

namespace shardwire::transport::shm {

/// One read. Owners: the list of those who read, and whoever reads it just now.
struct Read {
  std::uint64_t id = 0;
  std::uint64_t endpoint = 0;
  std::shared_ptr<const Mapping> mapping{};  ///< what it reads from; null: see `published`
  PublishedMemory published{};
  std::vector<ReadRange> ranges{};
  std::atomic<bool> cancelled = false;
  Outcome outcome{};  ///< once it has ended
};

/// Threads that read, since the kernel copies while its caller waits. They start when there is something to read.
/// Every member may be called by any thread.
class Readers {
 public:
  /// Errors: throws Error{out_of_resources}.
  Readers();
  /// Waits for the slices under way.
  ~Readers();
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  /// Errors: throws Error{out_of_resources} when there is no thread and none can be started.
  void post(std::shared_ptr<Read> read);
  /// Adds one that has ended without being read.
  void finish(std::shared_ptr<Read> read);
  /// Has the reads of an endpoint end soon.
  void cancel(std::uint64_t endpoint);
  /// Returns when no thread works for the endpoint any more, which takes a slice at most. Requires: they were cancelled.
  void wait(std::uint64_t endpoint);
  /// Those that have ended since the last call, in the order in which they ended.
  std::vector<std::shared_ptr<Read>> take_finished();
  /// Is readable as long as there are any.
  [[nodiscard]] int descriptor() const { return finished_event_.get(); }

 private:
  void work();
  void add_finished(std::shared_ptr<Read> read);  // with the lock

  support::Descriptor finished_event_;
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
