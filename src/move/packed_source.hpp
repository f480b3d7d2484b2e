// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/served_request.hpp"
#include "move/staging.hpp"

namespace shardwire::move {

/// The source's half of packed: it packs the boxes of a request into a slot and sends them as one message. Requests
/// wait for slots. A reader takes no more slots than it leaves to others: one hanging reader holds half of them, a
/// second one half of the rest.
/// Threads: the session's thread only.
class PackedSource {
 public:
  /// Slots of at most `slot_bytes`, smaller if the budget would hold only a few of them.
  PackedSource(memory::CopyQueue& copies, ByteCount budget_bytes, ByteCount slot_bytes);

  /// Maximum bytes of one request.
  [[nodiscard]] ByteCount slot_bytes() const { return pool_.slot_bytes(); }
  [[nodiscard]] const StagingPool& pool() const { return pool_; }
  /// Errors: throws Error{invalid_argument} for more than a slot holds; later errors are sent as the answer.
  void send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, bool digest);
  /// Drops its waiting requests. Slots of its messages are released when the endpoint is destroyed: call pump() then.
  void reader_gone(std::uint64_t reader);
  /// Packs waiting requests while there are slots for them.
  void pump();
  /// Drops all waiting requests: nothing is packed any more.
  void stop() { queue_.clear(); }

 private:
  struct Wanted {
    std::shared_ptr<ServedRequest> request;  // owners: this, and the job
    std::vector<SourceBox> boxes;
    ByteCount bytes = 0;
    bool digest = false;
    bool on_device = false;  // some of it lies on a device
  };
  struct Job;
  Slot acquire_pinned();
  void fail_next_on_device(const std::exception_ptr& error);
  void pack(Wanted wanted, Slot slot);
  void packed(const std::shared_ptr<Job>& job, const memory::CopyResult& result);

  memory::CopyQueue& copies_;
  StagingPool pool_;
  std::deque<Wanted> queue_;
  // Slots that hold data for a reader. Owners: this and the slots' jobs.
  std::map<std::uint64_t, std::shared_ptr<std::size_t>> slots_;
};

}  // namespace shardwire::move
