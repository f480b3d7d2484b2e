// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "session/loop.hpp"
#include "transport/transport.hpp"

namespace shardwire {

/// Lets a fabric progress on the session's loop: the loop sleeps on the fabric's descriptor when there is nothing to do.
/// Threads: loop thread only.
class FabricDriver {
 public:
  /// `broken` runs once, when the fabric fails as a whole; it is not driven any more then.
  FabricDriver(Loop& loop, transport::Fabric& fabric, std::function<void(const Error&)> broken);

 private:
  void advance();

  transport::Fabric& fabric_;
  std::function<void(const Error&)> broken_;
  HandleOwner<uv_prepare_t> prepare_;
  HandleOwner<uv_idle_t> idle_;
  HandleOwner<uv_poll_t> poll_;  // null when the fabric has no descriptor
};

}  // namespace shardwire
