// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <span>
#include <string>

#include "transport/transport.hpp"

// Cross-memory attach (process_vm_readv): the kernel copies out of another process's memory without that process's
// help. It requires the permission to debug the process, as a debugger of the same user has.
namespace shardwire::transport::shm {

/// A word that holds a number as long as the memory it guards is valid. It lies in the owner's memory, and a peer reads
/// it in the same system call as the guarded memory: both then belong to one process, even if a process id was reused.
/// The number is unique, so reused memory cannot hold it by accident.
class Mark {
 public:
  Mark();
  ~Mark() { clear(); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  /// Invalidates the number. A reader that still finds the number read everything before it while the memory was valid.
  void clear();
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(&word_); }

 private:
  const std::uint64_t number_;
  std::atomic<std::uint64_t> word_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the word is read by other processes");

/// Differs from all other numbers of this process, and very likely from those of other processes.
std::uint64_t unique_number();

/// A mark's location as sent to a peer.
struct MarkAddress {
  std::uint64_t number = 0;
  std::uint64_t address = 0;
};

/// The process at the other end of a socket, as the kernel reports it; pid 0: it has no process id in this namespace.
struct PeerProcess {
  pid_t pid = 0;
  uid_t user = 0;
};

/// Reads a peer's mark. Empty if that works; otherwise the reason and the remedy.
support::Fallback why_no_attach(const PeerProcess& peer, const MarkAddress& mark);
/// Lets any process of this user attach to this one where Yama would forbid it. Call it only at the user's request.
void allow_attach();

/// Memory that a peer has adopted.
struct PublishedMemory {
  pid_t pid = 0;
  std::uint64_t address = 0;
  MarkAddress mark;
};

/// Bytes to copy between two checks for cancellation.
inline constexpr ByteCount slice_bytes = ByteCount{4} << 20;

/// Copies ranges out of a peer's memory; stops between two slices once `cancelled` is set. Memory withdrawn before the
/// call is not read. Memory withdrawn during the call is detected, but later contents may have been copied by then.
Outcome read_published(const PublishedMemory& memory, std::span<const ReadRange> ranges,
                       const std::atomic<bool>& cancelled);

}  // namespace shardwire::transport::shm
