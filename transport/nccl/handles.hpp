// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "memory/device.hpp"
#include "transport/collective.hpp"
#include "transport/nccl/api.hpp"

namespace shardwire::transport::nccl {

/// A call that may hang for ever, on its own thread. The thread is abandoned if the call hangs.
class DetachedCall {
 public:
  explicit DetachedCall(std::function<void()> call);
  [[nodiscard]] bool over() const;
  /// Returns whether the call has ended.
  bool wait(std::chrono::milliseconds at_most) const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // owners: this and the thread
};

/// Called by a stream that has passed a round, on any thread.
struct Landing {
  std::mutex mutex;  // guards the following fields
  bool reported = false;
  std::optional<Fault> fault;
};

struct Bounds {
  std::chrono::milliseconds abort = std::chrono::seconds(10);
  std::chrono::milliseconds destroy = std::chrono::seconds(2);
};

/// Errors: throws Error{unsupported} for a runtime without streams that NCCL could use, Error{invalid_argument} if the
///         communicator in `setup` has another size, rank or device, Error{transport_failed} if NCCL refuses.
std::unique_ptr<Collective> open_with(const GroupSetup& setup, const Api& api,
                                      std::shared_ptr<memory::DeviceRuntime> runtime, const Bounds& bounds = {});

}  // namespace shardwire::transport::nccl
