// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "session/control/loop.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Lets fabrics progress on the session's loop: the loop sleeps on their descriptors when there is nothing to do, and has
/// been nothing for as long as it is to spin. One for all of them: what wakes the loop for one is no activity of another.
/// Threads: loop thread only.
class FabricDriver {
 public:
  /// `broken` runs once, when one of the fabrics fails as a whole; none is driven any more then.
  FabricDriver(Loop& loop, std::vector<transport::Fabric*> fabrics, std::chrono::nanoseconds spin,
               std::function<void(const Error&)> broken);

 private:
  using Clock = std::chrono::steady_clock;

  void advance();
  /// Something has moved, or has woken the loop.
  void active();
  /// One round of each; false when there was nothing to do.
  bool progress();
  /// Whether the loop may sleep now; the fabrics will wake it then.
  bool may_sleep();

  std::vector<transport::Fabric*> fabrics_;
  std::chrono::nanoseconds spin_;
  std::function<void(const Error&)> broken_;
  bool slept_ = true;  // the last round let the loop sleep, so whatever began this one has woken it
  Clock::time_point last_activity_{};
  HandleOwner<uv_prepare_t> prepare_;
  HandleOwner<uv_idle_t> idle_;
  std::vector<HandleOwner<uv_poll_t>> polls_;  // one less for each fabric that has no descriptor
};

}  // namespace shardwire
