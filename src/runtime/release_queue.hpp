// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "support/fork.hpp"

namespace shardwire {

/// Drops the last references to objects of callers on a thread of its own. Their destructors may wait for locks that no
/// thread of a session may wait for, such as an interpreter's.
/// Threads: any. In a child of fork() objects are kept for ever.
class ReleaseQueue {
 public:
  /// The queue of this process. It is never destroyed, because objects may be released until the process ends.
  static ReleaseQueue& instance();

  /// Drops the reference soon. The first call starts the thread.
  void release(std::shared_ptr<const void> object);
  /// Waits until all references given so far are dropped, for at most `timeout`, and keeps later ones for ever.
  void stop(std::chrono::nanoseconds timeout);

  /// Ownership: the thread uses it for ever.
  ReleaseQueue() = default;
  ReleaseQueue(const ReleaseQueue&) = delete;
  ReleaseQueue& operator=(const ReleaseQueue&) = delete;

 private:
  void run();

  support::OwningProcess owner_;
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  std::deque<std::shared_ptr<const void>> waiting_;
  std::uint64_t unreleased_ = 0;  // waiting_, and the one being dropped
  bool running_ = false;
  bool stopped_ = false;
};

/// The owners of memory that an operation uses. Gives them to the ReleaseQueue when the operation has ended.
/// Threads: as a value.
class KeptOwners {
 public:
  KeptOwners() = default;
  explicit KeptOwners(std::shared_ptr<const void> owners) : owners_(std::move(owners)) {}
  ~KeptOwners() { release(); }
  KeptOwners(KeptOwners&&) noexcept = default;
  KeptOwners& operator=(KeptOwners&& other) noexcept {
    std::swap(owners_, other.owners_);
    return *this;
  }
  void release() {
    if (owners_) ReleaseQueue::instance().release(std::exchange(owners_, nullptr));
  }

 private:
  std::shared_ptr<const void> owners_;  // owners: catalogs of the caller, and operations that use their memory
};

}  // namespace shardwire
