// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "memory/device.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {

/// An event of the caller's, and the device to wait for it on, or to record it on.
struct ReadyEvent {
  void* event = nullptr;
  int device = on_host;
};

/// Events that their lender may take back before they are waited for or recorded.
/// Threads: any.
class LentEvents {
 public:
  explicit LentEvents(std::vector<ReadyEvent> events) : events_(std::move(events)) {}

  /// After it returns the events are not used any more: from then on they count as having happened. It waits only for
  /// wait_on() and record_on().
  void take_back() {
    const std::lock_guard lock(mutex_);
    events_.clear();
  }
  /// Device of the first event; empty if there is none.
  [[nodiscard]] std::optional<int> device() const {
    const std::lock_guard lock(mutex_);
    return events_.empty() ? std::nullopt : std::optional(events_.front().device);
  }
  /// Errors: as DeviceStream::wait().
  void wait_on(DeviceStream& stream) const {
    const std::lock_guard lock(mutex_);
    for (const ReadyEvent& event : events_) stream.wait(event.event);
  }
  /// Records those of this device. Errors: as DeviceStream::record().
  void record_on(DeviceStream& stream, int device) const {
    const std::lock_guard lock(mutex_);
    for (const ReadyEvent& event : events_) {
      if (event.device == device) stream.record(event.event);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<ReadyEvent> events_;  // guarded by mutex_
};

/// Calls `done` once all events have happened, on a stream of its own, so that no other work waits for them. `done`
/// must call neither the runtime nor this function.
/// Threads: any; may take as long as opening a stream. `done` runs on a thread of the runtime.
/// Errors: as DeviceRuntime, and Error{unsupported} without a runtime; then `done` does not run.
void when_ready(const LentEvents& events, std::function<void(const std::optional<Error>& error)> done);
/// Blocks until all events have happened, and calls `meanwhile`, if any, about ten times a second on the caller's thread.
/// Errors: the same, the stream's final error, and whatever `meanwhile` throws.
void wait_until_ready(std::span<const ReadyEvent> events, const std::function<void()>& meanwhile = {});
/// Blocks until all queued work has ended. Errors: as for the stream, and its final error.
void wait_until_done(DeviceStream& stream);

}  // namespace shardwire::memory
