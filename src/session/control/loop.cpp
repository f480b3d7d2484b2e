// SPDX-License-Identifier: Apache-2.0
#include "session/control/loop.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "session/control/uv_error.hpp"

namespace shardwire {

Loop::Loop() : input_(64 * 1024) {
  check_uv(uv_loop_init(&loop_), "uv_loop_init");
  loop_.data = this;
  check_uv(uv_async_init(&loop_, &wake_, [](uv_async_t* wake) { static_cast<Loop*>(wake->data)->drain(); }),
           "uv_async_init");
  wake_.data = this;
  thread_ = std::thread([this] { run(); });
  id_ = thread_.get_id();
}

Loop::~Loop() {
  if (thread_.joinable()) end();
}

void Loop::end(std::function<void()> last) {
  post([this, last = std::move(last)] {
    if (last) last();
    stopping_ = true;
    uv_stop(&loop_);
  });
  thread_.join();
}

uv_buf_t Loop::input_of(const uv_loop_t& loop) {
  std::vector<char>& input = static_cast<Loop*>(loop.data)->input_;
  return uv_buf_init(input.data(), static_cast<unsigned>(input.size()));
}

void Loop::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  tasks_.push_back(std::move(task));
  uv_async_send(&wake_);
}

void Loop::drain() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    if (!stopping_) task();
  }
}

void Loop::run() {
  ::pthread_setname_np(::pthread_self(), "shardwire");
  // Signals belong to the embedding program's threads, but for those that this thread's own faults raise.
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, own);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  while (!stopping_) uv_run(&loop_, UV_RUN_DEFAULT);
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;  // nobody wakes it any more
  }
  drain();  // of what nobody runs any more
  // Owners are gone by now; what is left is the wake-up handle and handles whose close callbacks are due.
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
  while (uv_run(&loop_, UV_RUN_DEFAULT) != 0) {
  }
  uv_loop_close(&loop_);
}

Timer::Timer(Loop& loop) {
  auto handle = std::make_unique<uv_timer_t>();
  uv_timer_init(loop.raw(), handle.get());
  handle_.reset(handle.release());
  handle_->data = this;
}

Timer::~Timer() = default;

void Timer::start(std::chrono::nanoseconds delay, std::function<void()> task) {
  task_ = std::move(task);
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(delay, std::chrono::nanoseconds(0)));
  uv_update_time(handle_->loop);
  uv_timer_start(
      handle_.get(),
      [](uv_timer_t* timer) {
        if (timer->data == nullptr) return;
        // The task may start the timer again or destroy it.
        const auto due = std::move(static_cast<Timer*>(timer->data)->task_);
        if (due) due();
      },
      static_cast<std::uint64_t>(wait.count()), 0);
}

void Timer::stop() {
  task_ = nullptr;
  uv_timer_stop(handle_.get());
}

}  // namespace shardwire
