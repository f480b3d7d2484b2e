// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "memory/copier.hpp"
#include "memory/copy_queue.hpp"
#include "memory/device.hpp"
#include "memory/device_events.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {

/// Copies of any memory. Batches that are `on_devices` run on a stream of the device that owns the memory: the target's, or
/// the source's where the target is the host's. What a device cannot reach, ordinary host memory, goes part by part through
/// a few slots of pinned memory: the device's half on the stream, the host's on the copier's threads, side by side. Memory of a
/// device that another one cannot access goes through them too, a half on the stream of each. All other batches are the
/// processor's, as with HostCopies.
///
/// Nothing waits for a device: streams and slots are opened, and access to other devices' memory is asked for, on the copier's
/// threads, when they are first needed.
/// Digests are taken when all copies of a batch are made, each where the bytes are; devices take trees only.
/// Failures: those of a device are the results of the batches that need it; host memory goes on. A stream that has not taken all
/// of a piece of work is ended, on the copier's threads, before anybody hears of it: until then it may still write. What it was
/// not given yet goes to another one.
class DeviceCopies final : public CopyQueue {
 public:
  using Then = std::function<void(const std::exception_ptr& error)>;

  /// `wake` is called from any thread whenever poll() may have news. Slots take at most `pinned_budget_bytes` together.
  /// Ownership: the copier is borrowed. Requires: pinned_budget_bytes > 0.
  DeviceCopies(Copier& copier, std::function<void()> wake, ByteCount pinned_budget_bytes);
  ~DeviceCopies() override;

  void submit(CopyBatch batch, Done done) override;
  /// Polls the copier too. A `done` that throws ends the call; the others stay for the next.
  unsigned poll() override;
  /// It may outlive this, and is then freed where it ends.
  void make_pinned(ByteCount bytes, MadePinned done) override;
  /// Calls `then` inside poll() once all events have happened, or cannot be waited for. They may be taken back at any time.
  void when_ready(std::shared_ptr<const LentEvents> events, Then then);
  /// Records those of this device on its stream, and calls `then` inside poll() once they have happened, or one of them cannot be
  /// recorded, which ends nothing else, and those before it have happened. They may be taken back at any time.
  void record(std::shared_ptr<const LentEvents> events, int device, Then then);
  /// Waits for what devices are at; no `done` of a batch on devices runs any more. Before the copier ends.
  void stop();

  /// Memory of slots, now.
  [[nodiscard]] ByteCount pinned_bytes() const { return slots_made_ * slot_bytes_; }

 private:
  class Inbox;
  struct Running;
  struct Share;
  struct Hop;
  struct Lane;
  struct Ending;
  class Pinned;
  using DevicePairs = std::set<std::pair<int, int>>;  // who accesses, and whose memory
  using Slot = std::shared_ptr<DeviceMemory>;         // owners: this, or the hop that uses it

  void submit_on_devices(const std::shared_ptr<Running>& running);
  void sort(const std::shared_ptr<Running>& running, std::map<int, Share>& shares, std::vector<QueuedCopy>& host_only);
  [[nodiscard]] DevicePairs unknown_access(const std::vector<QueuedCopy>& copies) const;
  [[nodiscard]] bool reaches(int device, int other) const;
  void ask_for_access(const std::shared_ptr<Running>& running, DevicePairs pairs);
  void finish(const std::shared_ptr<Running>& running, const std::exception_ptr& error);
  void digest(const std::shared_ptr<Running>& running);
  void digest_on_host(const std::shared_ptr<Running>& running, std::vector<std::size_t> indices);
  void digest_on_device(Lane& lane, const std::shared_ptr<Running>& running, std::vector<std::size_t> indices);
  Lane& lane_of(int device);
  void open(Lane& lane);
  void advance(Lane& lane);
  void advance_once(Lane& lane);
  void drop_failed_hops(Lane& lane);
  void advance_all();
  void fail_waiting(Lane& lane, const std::exception_ptr& error);
  void fail_hops(Lane& lane, const std::exception_ptr& error);
  template <typename Post>
  void queue(Lane& lane, const Post& post, Then then);
  void end_stream(Lane& lane, std::uint64_t ticket, const Error& why);
  /// Runs what waits for it, at most once.
  bool over(std::uint64_t ticket, const std::exception_ptr& error);
  void begin(Hop hop, Slot slot);
  void copy_half(const std::shared_ptr<Hop>& hop, const Slot& slot, bool fills, Then then);
  void end(const Hop& hop, Slot slot, const std::exception_ptr& error);
  Slot take_slot();
  void make_slot();

  Copier& copier_;
  HostCopies host_;
  std::shared_ptr<Inbox> inbox_;       // owners: this and the runtime's callbacks
  std::shared_ptr<Copier*> freed_by_;  // null inside once this has stopped; owners: this and pinned memory
  ByteCount slot_bytes_;
  std::size_t max_slots_;
  std::size_t slots_made_ = 0;
  bool making_slot_ = false;
  std::vector<Slot> free_slots_;
  std::map<int, Lane> lanes_;                    // by device
  std::map<std::pair<int, int>, bool> reaches_;  // whether the first accesses memory of the second; as asked so far
  std::map<std::uint64_t, Then> under_way_;
  std::map<std::uint64_t, std::shared_ptr<Ending>> ending_;  // owners: this and the job; by ticket of what has failed
  std::uint64_t last_ticket_ = 0;
};

}  // namespace shardwire::memory
