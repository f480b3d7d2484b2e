// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>
#include <thread>

#include "transport/nccl/handles.hpp"

namespace shardwire::transport::nccl {

struct Apart::State {
  std::mutex mutex;  // guards what follows
  std::condition_variable ended;
  bool over = false;
};

Apart::Apart(std::function<void()> call) : state_(std::make_shared<State>()) {
  std::thread([state = state_, call = std::move(call)] {
    call();
    const std::lock_guard lock(state->mutex);
    state->over = true;
    state->ended.notify_all();
  }).detach();
}

bool Apart::over() const {
  const std::lock_guard lock(state_->mutex);
  return state_->over;
}

bool Apart::wait(std::chrono::milliseconds at_most) const {
  std::unique_lock lock(state_->mutex);
  return state_->ended.wait_for(lock, at_most, [this] { return state_->over; });
}

}  // namespace shardwire::transport::nccl
