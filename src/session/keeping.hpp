// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "control/directory.hpp"
#include "runtime/interruption.hpp"
#include "runtime/loop.hpp"
#include "serve/memory_table.hpp"
#include "serve/publication.hpp"

namespace shardwire {

class Core;

/// Snapshots in the keeper that are copies of other members' publications: it is told when such a member is lost.
/// Threads: loop thread only.
class KeptCopies {
 public:
  struct Copy {
    std::uint64_t connection = 0;  ///< to the keeper, in which the buffer has its number
    int member = 0;                ///< that published it
  };
  void add(std::uint64_t buffer, const Copy& copy) { copies_[buffer] = copy; }
  /// The buffer has another use from now on.
  void forget(std::uint64_t buffer) { copies_.erase(buffer); }
  /// Forgets and returns those whose publisher has been lost.
  [[nodiscard]] std::vector<std::uint64_t> take_orphans(const Directory& directory, std::uint64_t connection);

 private:
  std::map<std::uint64_t, Copy> copies_;  // by buffer
};

/// Buffers of the keeper that this process has mapped, of one connection to it.
/// Threads: any.
class KeptMemory {
 public:
  using Memory = std::shared_ptr<detail::RegisteredMemory>;

  /// Buffers that no publication uses any more. Forgets those of other connections.
  std::vector<std::uint64_t> free(std::uint64_t connection);
  /// Takes a buffer into use, and forgets those that the keeper has released. `fresh`: the mapping of a new one; null: it is
  /// mapped already. Errors: throws Error{transport_failed} if it is not.
  Memory use(const wire::KeepBuffer& given, Memory fresh);
  /// Held from the question for memory until its use.
  std::mutex& one_at_a_time() { return asking_; }

 private:
  std::mutex asking_;
  std::mutex mutex_;
  std::uint64_t connection_ = 0;  // guarded by mutex_, as the next
  std::map<std::uint64_t, Memory> by_id_;
};

/// A publication that is copied into memory of the keeper: begin, write, done, settle. The destructor takes back what is not
/// settled.
/// Threads: one, the caller's.
class Keeping {
 public:
  struct Setup {
    std::shared_ptr<Loop> loop;  ///< owners: see SessionState::running()
    Core& core;                  ///< on the loop
    const MemoryTable& memory;
    KeptMemory& kept;
    const Interruption& interruption;
  };
  /// `begin`: all but size, free buffers and node.
  Keeping(const Setup& setup, wire::KeepBegin begin) : setup_(setup), begin_(std::move(begin)) {}
  ~Keeping();
  Keeping(const Keeping&) = delete;
  Keeping& operator=(const Keeping&) = delete;

  /// Memory for the copy, on the NUMA node of this thread if the keeper can. Errors: throws Error{out_of_resources} with the numbers if the keeper has no room,
  /// Error{peer_lost} if there is no keeper, Error{cancelled} if a newer attempt of the job has begun.
  std::shared_ptr<detail::RegisteredMemory> allocate(ByteCount bytes);
  /// Everything is written: the keeper holds it from now on. `content`: all but request and buffer. Errors: as allocate().
  void done(wire::KeepDone content);
  [[nodiscard]] std::uint64_t connection() const { return connection_; }
  /// Requires: allocate() has returned, and it is not settled.
  [[nodiscard]] std::uint64_t buffer() const { return *buffer_; }
  /// The publication stands.
  void settle() { buffer_.reset(); }

 private:
  wire::KeepBuffer ask(std::vector<support::Descriptor>& descriptors);

  Setup setup_;
  wire::KeepBegin begin_;
  std::optional<std::uint64_t> buffer_;  // until it is settled
  std::uint64_t connection_ = 0;         // in which the buffer has its number
  bool mapped_ = false;
  std::shared_ptr<detail::RegisteredMemory> memory_;
};

/// The content that the keeper needs to publish this again. Requires: the publication lies in its snapshot.
wire::KeepDone kept_content(const detail::PublicationState& publication);

}  // namespace shardwire
