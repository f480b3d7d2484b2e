// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "memory/copier.hpp"
#include "memory/device.hpp"
#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {

/// Place of memory from DeviceRuntime::allocate_host(), instead of a device's ordinal.
inline constexpr int on_pinned_host = -2;

/// One copy of a batch, from local element 0 of one buffer to that of another. Each side is a device, on_host or
/// on_pinned_host.
struct QueuedCopy {
  StridedCopy copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  int source_device = on_host;
  int target_device = on_host;
  bool source_isolated = false;  ///< device memory that no other device can access
};

/// The operation on each copy of a batch.
enum class CopyWork : std::uint8_t {
  copy,
  copy_and_digest,  ///< the digest is of the target afterwards
  digest,           ///< of the source; nothing is copied
};

/// Copies that are submitted together.
struct CopyBatch {
  std::size_t count = 0;
  /// Returns the copy of an index. The queue calls it at any time on any thread: once for each index, in ascending
  /// order. Its captures live until `done` has run.
  std::function<QueuedCopy(std::size_t index)> copy;
  CopyWork work = CopyWork::copy;
  Stores stores = Stores::cached;
  bool at_once = false;     ///< too small to be worth a thread switch
  bool on_devices = false;  ///< some of it is device memory; then nothing is done at once
};

struct CopyResult {
  std::exception_ptr error;          ///< null: everything succeeded
  std::vector<Digest128> digests{};  ///< by index, if digests were requested
  double digest_seconds = 0;
};

/// Receives pinned memory; null: see the error.
using MadePinned = std::function<void(std::unique_ptr<DeviceMemory> memory, const std::exception_ptr& error)>;

/// Executes strided copies off the session's thread.
/// Threads: the session's thread only, `done` included.
class CopyQueue {
 public:
  using Done = std::function<void(CopyResult&)>;

  virtual ~CopyQueue() = default;
  /// `done` runs once, inside poll(), or inside submit() for a batch that is `at_once`. It does not run if the queue
  /// ends first.
  /// Errors: as Copier::submit(), and then `done` does not run; errors of the copies are in the result.
  virtual void submit(CopyBatch batch, Done done) = 0;
  /// Allocates device-accessible memory, also off the session's thread, since it takes milliseconds. `done` runs as for
  /// a batch.
  /// Errors: as submit(); `done` receives errors of the allocation.
  virtual void make_pinned(ByteCount /*bytes*/, MadePinned /*done*/) {
    throw Error(ErrorCode::unsupported, "these copies are of host memory only");
  }
  /// Runs `done` of batches that have ended so far and returns their number.
  virtual unsigned poll() = 0;
};

/// Copies by the processor on a copier's threads, for host memory only (DeviceCopies handles the rest). Batches that
/// are `at_once` are copied inside submit(). Its copier may be polled instead.
class HostCopies final : public CopyQueue {
 public:
  /// Ownership: the copier is borrowed.
  explicit HostCopies(Copier& copier) : copier_(copier) {}

  void submit(CopyBatch batch, Done done) override;
  unsigned poll() override { return copier_.poll(); }

 private:
  Copier& copier_;
};

}  // namespace shardwire::memory
