// SPDX-License-Identifier: Apache-2.0
#include "session/fabric_driver.hpp"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "session/control/uv_error.hpp"

namespace shardwire {

namespace {

template <typename Handle, typename Init>
HandleOwner<Handle> make_handle(Init init, const char* operation) {
  auto handle = std::make_unique<Handle>();
  check_uv(init(handle.get()), operation);
  return HandleOwner<Handle>(handle.release());
}

}  // namespace

FabricDriver::FabricDriver(Loop& loop, std::vector<transport::Fabric*> fabrics, std::chrono::nanoseconds spin,
                           std::function<void(const Error&)> broken)
    : fabrics_(std::move(fabrics)),
      spin_(spin),
      broken_(std::move(broken)),
      prepare_(make_handle<uv_prepare_t>([&](auto* h) { return uv_prepare_init(loop.raw(), h); }, "uv_prepare_init")),
      idle_(make_handle<uv_idle_t>([&](auto* h) { return uv_idle_init(loop.raw(), h); }, "uv_idle_init")) {
  for (const transport::Fabric* fabric : fabrics_) {
    const int descriptor = fabric->event_descriptor();
    if (descriptor < 0) continue;
    auto& poll = polls_.emplace_back(
        make_handle<uv_poll_t>([&](auto* h) { return uv_poll_init(loop.raw(), h, descriptor); }, "uv_poll_init"));
    // Waking up is all that is asked of it: the next round of the loop begins with advance().
    check_uv(uv_poll_start(poll.get(), UV_READABLE, [](uv_poll_t*, int, int) {}), "uv_poll_start");
  }
  prepare_->data = this;
  uv_prepare_start(prepare_.get(), [](uv_prepare_t* prepare) {
    if (prepare->data != nullptr) static_cast<FabricDriver*>(prepare->data)->advance();
  });
}

void FabricDriver::advance() {
  // Bounded, so that control messages and copies get their turn under constant traffic.
  constexpr int max_rounds = 64;
  try {
    int rounds = 0;
    while (rounds < max_rounds && progress()) ++rounds;
    if (slept_ || rounds > 0) active();
    slept_ = rounds < max_rounds && may_sleep();
    if (slept_) {
      uv_idle_stop(idle_.get());
    } else {
      uv_idle_start(idle_.get(), [](uv_idle_t*) {});  // an active idle handle keeps the loop from sleeping
      if (rounds == 0) sched_yield();                 // to a peer of this host, or to a thread that copies
    }
  } catch (const std::exception& error) {  // must not cross libuv
    uv_idle_stop(idle_.get());
    uv_prepare_stop(prepare_.get());
    for (const auto& poll : polls_) uv_poll_stop(poll.get());
    broken_(Error(ErrorCode::transport_failed, error.what()));
  }
}

bool FabricDriver::progress() {
  bool any = false;
  for (transport::Fabric* fabric : fabrics_) any = fabric->progress() || any;
  return any;
}

void FabricDriver::active() {
  if (spin_ > Clock::duration::zero()) last_activity_ = Clock::now();
}

bool FabricDriver::may_sleep() {
  if (polls_.size() < fabrics_.size()) return false;
  if (spin_ > Clock::duration::zero() && Clock::now() - last_activity_ < spin_) return false;
  return std::ranges::all_of(fabrics_, [](transport::Fabric* fabric) { return fabric->arm(); });
}

}  // namespace shardwire
