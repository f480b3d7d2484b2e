// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/attach.hpp"

#include <fmt/core.h>
#include <limits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>

namespace shardwire::transport::shm {
namespace {

void* remote_address(std::uint64_t address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

// Not the C library's function: sanitizers intercept it, and if the peer is this process they report the read of a
// cleared mark as a use of freed memory.
ssize_t attach_and_read(pid_t pid, std::span<const iovec> local, std::span<const iovec> remote) {
  return ::syscall(SYS_process_vm_readv, pid, local.data(), local.size(), remote.data(), remote.size(), 0UL);
}

enum class Found : std::uint8_t { mark, other, error };  // error: see errno

Found find_mark(pid_t pid, const MarkAddress& mark) {
  std::uint64_t word = 0;
  const iovec local{&word, sizeof word};
  const iovec remote{remote_address(mark.address), sizeof word};
  if (attach_and_read(pid, {&local, 1}, {&remote, 1}) != static_cast<ssize_t>(sizeof word)) return Found::error;
  return word == mark.number ? Found::mark : Found::other;
}

Fault withdrawn() {
  return {ErrorCode::withdrawn, "the peer has withdrawn this memory"};
}

// The fault for a failed system call.
Fault fault_of_read(const PublishedMemory& memory, int error) {
  if (error == ESRCH) return {ErrorCode::peer_lost, fmt::format("process {} has ended", memory.pid)};
  if (error == EFAULT) {
    if (find_mark(memory.pid, memory.mark) != Found::mark) return withdrawn();
    return {ErrorCode::transport_failed,
            fmt::format("memory of process {}, or memory to read into, is not mapped (any more)", memory.pid)};
  }
  return {ErrorCode::transport_failed,
          fmt::format("cannot read memory of process {} (process_vm_readv): {}", memory.pid, std::strerror(error))};
}

/// The ranges of one system call, followed by the mark.
class Slice {
 public:
  [[nodiscard]] bool full() const {
    return bytes_ == slice_bytes || local_count_ == max_entries - 1 || remote_count_ == max_entries - 1;
  }
  /// Requires: not full. Returns how many of the bytes were taken.
  ByteCount add(std::uint64_t from, std::byte* into, ByteCount bytes) {
    const ByteCount taken = std::min(bytes, slice_bytes - bytes_);
    append(local_, local_count_, into, taken);
    append(remote_, remote_count_, remote_address(from), taken);
    bytes_ += taken;
    return taken;
  }
  [[nodiscard]] ByteCount bytes() const { return bytes_; }
  /// Returns the system call's result, which includes the mark.
  ssize_t read(const PublishedMemory& memory) {
    local_[local_count_] = {&word_, sizeof word_};
    remote_[remote_count_] = {remote_address(memory.mark.address), sizeof word_};
    return attach_and_read(memory.pid, std::span(local_).first(local_count_ + 1),
                           std::span(remote_).first(remote_count_ + 1));
  }
  [[nodiscard]] std::uint64_t word() const { return word_; }
  [[nodiscard]] ByteCount bytes_with_mark() const { return bytes_ + sizeof word_; }

 private:
  static constexpr std::size_t max_entries = IOV_MAX;
  using Entries = std::array<iovec, max_entries>;

  // Merges adjacent ranges on each side separately: the kernel treats both lists as byte streams.
  static void append(Entries& entries, std::size_t& count, void* at, ByteCount bytes) {
    if (count > 0) {
      iovec& last = entries[count - 1];
      if (static_cast<std::byte*>(last.iov_base) + last.iov_len == at) {
        last.iov_len += bytes;
        return;
      }
    }
    entries[count++] = {at, bytes};
  }

  Entries local_;
  Entries remote_;
  std::size_t local_count_ = 0;
  std::size_t remote_count_ = 0;
  ByteCount bytes_ = 0;
  std::uint64_t word_ = 0;
};

/// A position in a list of ranges.
struct Cursor {
  std::span<const ReadRange> left;
  ByteCount done_bytes = 0;  // of the first range

  void skip(ByteCount bytes) {
    done_bytes += bytes;
    while (!left.empty() && done_bytes >= left.front().into.bytes) {
      done_bytes -= left.front().into.bytes;
      left = left.subspan(1);
    }
  }
};

void fill(Slice& slice, Cursor at, const PublishedMemory& memory) {
  while (!at.left.empty() && !slice.full()) {
    const ReadRange& range = at.left.front();
    at.skip(slice.add(memory.address + range.offset_bytes + at.done_bytes, range.into.address + at.done_bytes,
                      range.into.bytes - at.done_bytes));
  }
}

std::string line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// If a process is not dumpable, its files in /proc belong to root.
bool is_undumpable(const PeerProcess& peer) {
  struct stat info {};
  return peer.user != 0 && ::stat(fmt::format("/proc/{}/maps", peer.pid).c_str(), &info) == 0 && info.st_uid == 0;
}

bool reads_itself() {
  const Mark mark;
  return find_mark(::getpid(), {mark.number(), mark.address()}) == Found::mark;
}

support::Fallback why_not_permitted(const PeerProcess& peer) {
  if (!reads_itself()) return {FallbackReason::seccomp, "a seccomp filter of this process forbids process_vm_readv"};
  if (peer.user != ::geteuid()) {
    return {FallbackReason::other_user,
            fmt::format("process {} belongs to user {}, this one to user {}", peer.pid, peer.user, ::geteuid())};
  }
  if (is_undumpable(peer)) {
    return {FallbackReason::undumpable,
            fmt::format("process {} is not dumpable (prctl PR_SET_DUMPABLE, or a change of its user)", peer.pid)};
  }
  const std::string scope = line_of("/proc/sys/kernel/yama/ptrace_scope");
  if (scope == "1") {
    return {FallbackReason::ptrace_scope,
            fmt::format(
                "Yama lets no process attach to process {} that is not its ancestor (kernel.yama.ptrace_scope is 1): "
                "set it to 0, or SHARDWIRE_ALLOW_ATTACH=1 for all ranks",
                peer.pid)};
  }
  if (scope == "2" || scope == "3") {
    return {FallbackReason::ptrace_scope,
            fmt::format("Yama lets {} attach to process {} (kernel.yama.ptrace_scope is {})",
                        scope == "2" ? "only processes with CAP_SYS_PTRACE" : "no process", peer.pid, scope)};
  }
  return {FallbackReason::not_permitted,
          fmt::format("the kernel does not let this process attach to process {} (other capabilities, another user "
                      "namespace or a security module)",
                      peer.pid)};
}

}  // namespace

std::uint64_t unique_number() {
  // Steps of an odd constant and an invertible mixing: no number occurs twice.
  static std::atomic<std::uint64_t> state = std::uint64_t{std::random_device{}()} << 32 | std::random_device{}();
  std::uint64_t number = state.fetch_add(0x9e3779b97f4a7c15ULL);
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9ULL;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebULL;
  // A forked copy of the process would continue with the same numbers.
  return number ^ (number >> 31) ^ static_cast<std::uint64_t>(::getpid()) << 32;
}

Mark::Mark() : number_(unique_number()), word_(number_) {
}

void Mark::clear() {
  word_.store(0, std::memory_order_seq_cst);
  __sync_synchronize();  // same as std::atomic_thread_fence(), which the thread sanitizer does not support
}

support::Fallback why_no_attach(const PeerProcess& peer, const MarkAddress& mark) {
  if (peer.pid == 0) {
    return {FallbackReason::other_namespace, "the peer is in a PID namespace that cannot be seen from here"};
  }
  switch (find_mark(peer.pid, mark)) {
    case Found::mark: return {};
    case Found::other: break;
    case Found::error:
      switch (errno) {
        case EPERM: return why_not_permitted(peer);
        case ENOSYS:
          return {FallbackReason::seccomp, "process_vm_readv is not in this kernel, or a seccomp filter hides it"};
        case ESRCH:
          return {FallbackReason::failed, fmt::format("process {}, which has made the socket, has ended", peer.pid)};
        case EFAULT: break;
        default:
          return {FallbackReason::failed,
                  fmt::format("cannot attach to process {}: {}", peer.pid, std::strerror(errno))};
      }
  }
  return {FallbackReason::failed, fmt::format("process {} made the socket, but another process uses it", peer.pid)};
}

void allow_attach() {
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // fails without Yama, which then forbids nothing
}

Outcome read_published(const PublishedMemory& memory, std::span<const ReadRange> ranges,
                       const std::atomic<bool>& cancelled) {
  Cursor at{ranges};
  at.skip(0);  // skips empty ranges at the front
  switch (find_mark(memory.pid, memory.mark)) {
    case Found::mark: break;
    case Found::other: return withdrawn();
    case Found::error: return fault_of_read(memory, errno);
  }
  while (!at.left.empty()) {
    if (cancelled) return Fault{ErrorCode::cancelled, "the read was cancelled"};
    Slice slice;
    fill(slice, at, memory);
    const ssize_t got = slice.read(memory);
    if (got <= 0) return fault_of_read(memory, got == 0 ? EFAULT : errno);
    const auto count = static_cast<ByteCount>(got);
    if (count == slice.bytes_with_mark()) {
      if (slice.word() != memory.mark.number) return withdrawn();
    } else if (count >= slice.bytes()) {
      return withdrawn();  // the data was readable, the mark's page was not
    }
    at.skip(std::min(count, slice.bytes()));  // after a short read, the next call returns the reason
  }
  return std::nullopt;
}

}  // namespace shardwire::transport::shm
