// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <span>
#include <string>

#include "transport/transport.hpp"

// Cross-memory attach (process_vm_readv): the kernel copies out of another process's memory, and that process does nothing
// for it. It is allowed what a debugger of the same user would be.
namespace shardwire::transport::shm {

/// A word in memory that holds a number as long as something is there. It lies in its owner's memory, where a peer reads it
/// in the same system call as what it stands for: then both are of one process, also where a process number was used again.
/// The number is unique, so that memory which was put to other use can hold it by no accident.
class Mark {
 public:
  Mark();
  ~Mark() { clear(); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;
  /// Whoever still finds the number has read all that he read before while the memory was not yet put to other use.
  void clear();
  [[nodiscard]] std::uint64_t number() const { return number_; }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uintptr_t>(&word_); }

 private:
  const std::uint64_t number_;
  std::atomic<std::uint64_t> word_;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "the word is read by other processes");

/// Differs from every other of this process, and very likely from those of others.
std::uint64_t unique_number();

/// What a peer is told of a mark.
struct MarkAddress {
  std::uint64_t number = 0;
  std::uint64_t address = 0;
};

/// The process at the other end of a socket, by what the kernel says; pid 0: it has no number here.
struct PeerProcess {
  pid_t pid = 0;
  uid_t user = 0;
};

/// Reads a peer's mark. Empty when that works; else why not, and what to do about it.
std::string why_no_attach(const PeerProcess& peer, const MarkAddress& mark);
/// Lets any process of this user attach to this one, where Yama would not. Only for users who ask for it.
void allow_attach();

/// Memory that a peer has adopted.
struct PublishedMemory {
  pid_t pid = 0;
  std::uint64_t address = 0;
  MarkAddress mark;
};

/// Bytes that are copied before anybody asks whether they are still wanted.
inline constexpr ByteCount slice_bytes = ByteCount{4} << 20;

/// Copies ranges out of a peer's memory; ends between two slices once `cancelled`. What was withdrawn before is not read;
/// what is withdrawn meanwhile is noticed, after bytes of whatever came next may have been copied.
Outcome read_published(const PublishedMemory& memory, std::span<const ReadRange> ranges,
                       const std::atomic<bool>& cancelled);

}  // namespace shardwire::transport::shm
