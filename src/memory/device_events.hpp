// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "memory/device.hpp"
#include "shardwire/error.hpp"

namespace shardwire::memory {

/// An event of the caller's, and the device to wait for it on.
struct ReadyEvent {
  void* event = nullptr;
  int device = on_host;
};

/// Calls `done` once all events have happened, on a stream of its own, so that nothing else waits with it. It may call neither the
/// runtime nor this.
/// Threads: any; may take as long as opening a stream does. `done` runs on a thread of the runtime.
/// Errors: as of DeviceRuntime, and Error{unsupported} without a runtime; then `done` does not run.
void when_ready(std::span<const ReadyEvent> events, std::function<void(const std::optional<Error>& error)> done);
/// Blocks until then. Errors: the same, and what the stream's end says.
void wait_until_ready(std::span<const ReadyEvent> events);

}  // namespace shardwire::memory
