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

/// Of memory that DeviceRuntime::allocate_host() has made, in place of a device's ordinal.
inline constexpr int on_pinned_host = -2;

/// One copy of a batch, from local element 0 of one buffer to that of another. Each lies on a device, on_host or
/// on_pinned_host.
struct QueuedCopy {
  StridedCopy copy;
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  int source_device = on_host;
  int target_device = on_host;
  bool source_apart = false;  ///< of a device, and open to no other one
};

/// What is done with each copy of a batch.
enum class CopyWork : std::uint8_t {
  copy,
  copy_and_digest,  ///< of what is in the target then
  digest,           ///< of the source; nothing is copied
};

/// Copies that are made together.
struct CopyBatch {
  std::size_t count = 0;
  /// The copy of an index. The queue calls it when and on which thread it likes: for each index once, in ascending order. What
  /// it holds lives until `done` has run.
  std::function<QueuedCopy(std::size_t index)> copy;
  CopyWork work = CopyWork::copy;
  DigestKind digest = DigestKind::flat;
  Stores stores = Stores::cached;
  bool at_once = false;     ///< so little that it is not worth a thread switch
  bool on_devices = false;  ///< some of it is memory of a device; then nothing is done at once
};

struct CopyResult {
  std::exception_ptr error;          ///< null: all was done
  std::vector<Digest128> digests{};  ///< by index, where they were asked for
  double digest_seconds = 0;
};

/// What has been made of pinned memory; null: see the error.
using MadePinned = std::function<void(std::unique_ptr<DeviceMemory> memory, const std::exception_ptr& error)>;

/// Does strided copies away from the session's thread.
/// Threads: the session's thread only, `done` included.
class CopyQueue {
 public:
  using Done = std::function<void(CopyResult&)>;

  virtual ~CopyQueue() = default;
  /// `done` runs once, inside poll(), or inside submit() for a batch that is `at_once`. When the queue ends first, it never
  /// does.
  /// Errors: as Copier::submit(), and then `done` does not run; what goes wrong with the copies is in the result.
  virtual void submit(CopyBatch batch, Done done) = 0;
  /// Memory that devices reach, made away from the session's thread as well: it takes milliseconds. `done` runs as that of a batch.
  /// Errors: as submit(); what goes wrong when it is made is what `done` is told.
  virtual void make_pinned(ByteCount /*bytes*/, MadePinned /*done*/) {
    throw Error(ErrorCode::unsupported, "these copies are of host memory only");
  }
  /// Runs `done` of what has ended by now; returns how many.
  virtual unsigned poll() = 0;
};

/// Copies by the processor, on the threads of a copier: of host memory only (DeviceCopies does the rest). Those at once are made
/// inside submit(). Its copier may be polled instead.
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
