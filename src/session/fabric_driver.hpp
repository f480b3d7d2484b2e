// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "session/control/loop.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Lets a fabric progress on the session's loop: the loop sleeps on the fabric's descriptor when there is nothing to do,
/// and has been nothing for as long as it is to spin.
/// Threads: loop thread only.
class FabricDriver {
 public:
  /// `broken` runs once, when the fabric fails as a whole; it is not driven any more then.
  FabricDriver(Loop& loop, transport::Fabric& fabric, std::chrono::nanoseconds spin,
               std::function<void(const Error&)> broken);

 private:
  using Clock = std::chrono::steady_clock;

  void advance();
  /// Something has moved, or has woken the loop.
  void active();
  /// Whether the loop may sleep now; the fabric will wake it then.
  bool may_sleep();

  transport::Fabric& fabric_;
  std::chrono::nanoseconds spin_;
  std::function<void(const Error&)> broken_;
  bool slept_ = true;  // the last round let the loop sleep, so whatever began this one has woken it
  Clock::time_point last_activity_{};
  HandleOwner<uv_prepare_t> prepare_;
  HandleOwner<uv_idle_t> idle_;
  HandleOwner<uv_poll_t> poll_;  // null when the fabric has no descriptor
};

}  // namespace shardwire
