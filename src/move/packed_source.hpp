// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/served_request.hpp"
#include "move/staging.hpp"

namespace shardwire::move {

/// The source's half of packed: what a request names is packed into a slot, and leaves as one message. Requests wait for
/// slots; a reader takes no more of them than it leaves to others: one that hangs holds half of them, a second one half of
/// the rest.
/// Threads: the session's thread only.
class PackedSource {
 public:
  /// Slots of at most `slot_bytes`, fewer where the budget would hold only a few of them.
  PackedSource(memory::CopyQueue& copies, ByteCount budget_bytes, ByteCount slot_bytes);

  /// Most bytes of one request.
  [[nodiscard]] ByteCount slot_bytes() const { return pool_.slot_bytes(); }
  [[nodiscard]] const StagingPool& pool() const { return pool_; }
  /// Errors: throws Error{invalid_argument} for more than a slot holds; what is found out later is the answer.
  void send(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes,
            std::optional<memory::DigestKind> digest);
  /// Forgets what waits. What was on its way is given back when the endpoint goes: call pump() then.
  void reader_gone(std::uint64_t reader);
  /// Packs what waits, as long as there are slots for it.
  void pump();
  /// Forgets all that waits: nothing is packed any more.
  void stop() { queue_.clear(); }

 private:
  struct Wanted {
    std::shared_ptr<ServedRequest> request;  // owners: this, and the job
    std::vector<SourceBox> boxes;
    ByteCount bytes = 0;
    std::optional<memory::DigestKind> digest{};
    bool on_device = false;  // some of it lies there
  };
  struct Job;
  Slot acquire_pinned();
  void fail_next_on_device(const std::exception_ptr& error);
  void pack(Wanted wanted, Slot slot);
  void packed(const std::shared_ptr<Job>& job, const memory::CopyResult& result);

  memory::CopyQueue& copies_;
  StagingPool pool_;
  std::deque<Wanted> queue_;
  // Slots that hold what a reader has asked for. Owners: this and the slots' jobs.
  std::map<std::uint64_t, std::shared_ptr<std::size_t>> slots_;
};

}  // namespace shardwire::move
