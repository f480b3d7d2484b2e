// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "memory/completions.hpp"
#include "memory/copier.hpp"
#include "memory/device.hpp"
#include "memory/pinned_pool.hpp"

namespace shardwire::memory {

/// The work of one device: one stream, and its queue. The copier's threads open the stream when work first needs it.
/// Failures: if the stream accepts work only in part, the copier's threads close the stream before the work counts as
///           failed: until then it may still write. The next work opens another stream. If no stream can be opened, all
///           queued work fails.
/// Threads: one thread at a time.
class DeviceLane {
 public:
  using Post = std::function<void(DeviceStream&)>;
  using Then = Completions::Then;

  /// Work that needs a slot of pinned memory. The lane calls either `begin`, once the stream is open and a slot is
  /// free, or `end`: with null if the work is no longer wanted, else with the reason why it cannot begin.
  struct SlotWork {
    std::function<bool()> wanted;
    std::function<void(PinnedPool::Slot slot)> begin;
    Then end;
  };

  /// Ownership: all three are borrowed.
  DeviceLane(int device, Copier& copier, Completions& completions, PinnedPool& pool);
  ~DeviceLane();
  DeviceLane(const DeviceLane&) = delete;
  DeviceLane& operator=(const DeviceLane&) = delete;

  /// Work begins in the order of push(). `post` posts it on the stream; `then` runs inside Completions::poll() when it
  /// has ended.
  void push(Post post, Then then);
  void push(SlotWork work);
  /// Begins all work that can begin; call it when a slot becomes free.
  void advance();
  void fail_slot_work(const std::exception_ptr& error);
  /// Waits for the device's work under way. No callback runs any more.
  void stop();

 private:
  struct Work {
    Post post;
    Then then;
  };
  struct Ending;

  void advance_once();
  void drop_unwanted();
  void start(const Work& work);
  void open();
  void opened(std::unique_ptr<DeviceStream> stream);
  void fail_waiting(const std::exception_ptr& error);
  void end_stream(Completions::Ticket ticket, const Error& why);

  int device_;
  Copier& copier_;
  Completions& completions_;
  PinnedPool& pool_;
  std::unique_ptr<DeviceStream> stream_;
  bool opening_ = false;
  bool stopped_ = false;
  std::deque<Work> work_;
  std::deque<SlotWork> slot_work_;
  bool advancing_ = false;
  bool again_ = false;  // there is more to do
  std::map<Completions::Ticket, std::shared_ptr<Ending>>
      ending_;  // owners: this and the job; by ticket of the failed work
};

}  // namespace shardwire::memory
