// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "memory/completions.hpp"
#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "memory/device_events.hpp"
#include "memory/device_lane.hpp"
#include "memory/pinned_pool.hpp"
#include "memory/staged_copy.hpp"

namespace shardwire::memory {

/// Copies between any memory. Batches that are `on_devices` run on a stream of the device that owns the memory: the
/// target's, or the source's if the target is host memory. Ordinary host memory, which a device cannot reach, passes
/// part by part through a few slots of pinned memory: the device's half on the stream, the host's on the copier's
/// threads, in parallel. Memory of a device that another device cannot access passes through the slots too, one half on
/// the stream of each. The processor copies all other batches, as in HostCopies.
///
/// Nothing waits for a device: the copier's threads open streams and slots, and request access to other devices'
/// memory, on first use. Digests are taken when all copies of a batch are made, each where the bytes are.
/// Failures: a device's failures are results of the batches that use it (DeviceLane); host memory continues to work.
class DeviceCopies final : public CopyQueue {
 public:
  using Then = Completions::Then;

  /// `wake` is called on any thread whenever poll() may have work. Slots take at most `pinned_budget_bytes` in total.
  /// Ownership: the copier is borrowed. Requires: pinned_budget_bytes > 0.
  DeviceCopies(Copier& copier, std::function<void()> wake, ByteCount pinned_budget_bytes);
  ~DeviceCopies() override;

  void submit(CopyBatch batch, Done done) override;
  /// Polls the copier too. A `done` that throws ends the call; the others stay for the next call.
  unsigned poll() override;
  /// The memory may outlive this object; it is then freed where it is destroyed.
  void make_pinned(ByteCount bytes, MadePinned done) override;
  /// Calls `then` inside poll() once all events have happened, or waiting has failed. The events may be taken back at
  /// any time.
  void when_ready(std::shared_ptr<const LentEvents> events, Then then);
  /// Records the events of this device on its stream. Calls `then` inside poll() once they have happened, or once one
  /// cannot be recorded and those before it have happened; other work is unaffected. The events may be taken back at
  /// any time.
  void record(std::shared_ptr<const LentEvents> events, int device, Then then);
  /// Waits for the devices' work under way; no `done` of a batch on devices runs afterwards. Call it before the copier
  /// ends.
  void stop();

  /// Current memory of slots.
  [[nodiscard]] ByteCount pinned_bytes() const { return pool_.bytes(); }

 private:
  struct Running;
  struct Sorted;
  using DevicePairs = std::set<std::pair<int, int>>;  // the accessing device, and the memory's device

  [[nodiscard]] DevicePairs unknown_access(const std::vector<QueuedCopy>& copies) const;
  [[nodiscard]] bool reaches(int device, int other) const;
  void ask_for_access(const std::shared_ptr<Running>& running, DevicePairs pairs);
  void submit_on_devices(const std::shared_ptr<Running>& running);
  [[nodiscard]] Sorted sort(Running& running) const;
  void copy_on_host(const std::shared_ptr<Running>& running, std::vector<QueuedCopy> copies);
  void copy_staged(DeviceLane& lane, const std::shared_ptr<Running>& running, StagedCopy copy);
  void copy_half(const std::shared_ptr<Running>& running, const std::shared_ptr<const StagedCopy>& copy,
                 const PinnedPool::Slot& slot, bool fills, Then then);
  void end_staged(const std::shared_ptr<Running>& running, PinnedPool::Slot slot, const std::exception_ptr& error);
  void finish(const std::shared_ptr<Running>& running, const std::exception_ptr& error);
  void digest(const std::shared_ptr<Running>& running);
  void digest_on_host(const std::shared_ptr<Running>& running, std::vector<std::size_t> indices);
  void digest_on_device(DeviceLane& lane, const std::shared_ptr<Running>& running, std::vector<std::size_t> indices);
  DeviceLane& lane_of(int device);
  void slots_changed(const std::exception_ptr& error);

  Copier& copier_;
  HostCopies host_;
  Completions completions_;
  PinnedPool pool_;
  std::map<int, DeviceLane> lanes_;              // by device
  std::map<std::pair<int, int>, bool> reaches_;  // whether the first accesses the second's memory; as queried so far
};

}  // namespace shardwire::memory
