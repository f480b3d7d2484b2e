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

/// Events of somebody who may want them back before anybody has begun to wait for them, or recorded them.
/// Threads: any.
class LentEvents {
 public:
  explicit LentEvents(std::vector<ReadyEvent> events) : events_(std::move(events)) {}

  /// Nobody uses them any more when it returns: from now on they count as having happened. Waits for wait_on() and record_on() only.
  void take_back() {
    const std::lock_guard lock(mutex_);
    events_.clear();
  }
  /// Of the first; empty where there is none.
  [[nodiscard]] std::optional<int> device() const {
    const std::lock_guard lock(mutex_);
    return events_.empty() ? std::nullopt : std::optional(events_.front().device);
  }
  /// Errors: as DeviceStream::wait().
  void wait_on(DeviceStream& stream) const {
    const std::lock_guard lock(mutex_);
    for (const ReadyEvent& event : events_) stream.wait(event.event);
  }
  /// Those of this device. Errors: as DeviceStream::record().
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

/// Calls `done` once all events have happened, on a stream of its own, so that nothing else waits with it. It may call neither the
/// runtime nor this.
/// Threads: any; may take as long as opening a stream does. `done` runs on a thread of the runtime.
/// Errors: as of DeviceRuntime, and Error{unsupported} without a runtime; then `done` does not run.
void when_ready(const LentEvents& events, std::function<void(const std::optional<Error>& error)> done);
/// Blocks until then. Errors: the same, and what the stream's end says.
void wait_until_ready(std::span<const ReadyEvent> events);
/// Blocks until all that is queued is over. Errors: as of the stream, and what its end says.
void wait_until_done(DeviceStream& stream);

}  // namespace shardwire::memory
