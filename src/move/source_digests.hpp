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

/// Takes digests of local memory, for a few requests of a reader at a time, so that copies for other readers do not
/// wait for all requests of one.
/// Threads: the session's thread only.
class SourceDigests {
 public:
  using Done = std::function<void(std::vector<Digest128>)>;

  explicit SourceDigests(memory::CopyQueue& copies) : copies_(copies) {}

  /// Errors: throws Error if the request cannot be served; later errors, and errors that `done` throws, are sent as the
  ///         answer.
  void take(std::shared_ptr<ServedRequest> request, std::vector<SourceBox> boxes, Done done);
  /// Drops its waiting requests.
  void reader_gone(std::uint64_t reader) { queues_.erase(reader); }

 private:
  struct Wanted {
    std::shared_ptr<ServedRequest> request;  // owners: this, the code that serves it, and jobs
    std::vector<SourceBox> boxes;
    ByteCount bytes = 0;
    Done done;
    std::vector<Digest128> digests{};
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
  std::map<std::uint64_t, std::shared_ptr<Queue>> queues_;  // by reader; owners: this and started requests
};

}  // namespace shardwire::move
