// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/served_request.hpp"

namespace shardwire::move {

/// Takes digests of what lies here, of a few requests of a reader at a time: the copies of others are not to wait for all
/// of one's.
/// Threads: the session's thread only.
class SourceDigests {
 public:
  using Done = std::function<void(std::vector<wire::BoxDigest>)>;

  explicit SourceDigests(memory::CopyQueue& copies) : copies_(copies) {}

  /// Errors: throws Error when the request cannot be served; what is found out later, and what `done` throws, is the answer.
  void take(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, memory::DigestKind kind, Done done);
  /// Forgets what waits.
  void reader_gone(std::uint64_t reader) { queues_.erase(reader); }

 private:
  struct Wanted {
    std::shared_ptr<ServedRequest> request;  // owners: this, what has it served, and jobs
    std::vector<SourceBox> boxes;
    memory::DigestKind kind = memory::DigestKind::flat;
    ByteCount bytes = 0;
    Done done;
    std::vector<wire::BoxDigest> digests{};
    std::shared_ptr<void> slot{};  // counts it in the reader's queue
  };
  struct Queue {
    std::size_t begun = 0;
    std::deque<Wanted> waiting;
  };
  void take(Wanted wanted);
  void next(const std::shared_ptr<Wanted>& wanted);
  void taken(const std::shared_ptr<Wanted>& wanted, const memory::CopyResult& result);
  void take_waiting(std::uint64_t reader);

  memory::CopyQueue& copies_;
  std::map<std::uint64_t, std::shared_ptr<Queue>> queues_;  // by reader; owners: this and what has begun
};

}  // namespace shardwire::move
