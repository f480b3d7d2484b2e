// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>
#include <thread>

#include "transport/nccl/handles.hpp"

namespace shardwire::transport::nccl {

struct DetachedCall::State {
  std::mutex mutex;  // guards the following fields
  std::condition_variable ended;
  bool over = false;
};

DetachedCall::DetachedCall(std::function<void()> call) : state_(std::make_shared<State>()) {
  std::thread([state = state_, call = std::move(call)] {
    call();
    const std::lock_guard lock(state->mutex);
    state->over = true;
    state->ended.notify_all();
  }).detach();
}

bool DetachedCall::over() const {
  const std::lock_guard lock(state_->mutex);
  return state_->over;
}

bool DetachedCall::wait(std::chrono::milliseconds at_most) const {
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_for(lock, at_most, [this] { return state_->over; });
}

}  // namespace shardwire::transport::nccl
