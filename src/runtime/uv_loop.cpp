// SPDX-License-Identifier: Apache-2.0
#include "runtime/uv_loop.hpp"

#include <algorithm>
#include <utility>

#include "runtime/socket_listener.hpp"
#include "runtime/socket_stream.hpp"
#include "runtime/uv_handle.hpp"
#include "support/own_thread.hpp"

namespace shardwire {

UvLoop::UvLoop() : input_(64 * 1024) {
  check_uv(uv_loop_init(&loop_), "uv_loop_init");
  loop_.data = this;
  check_uv(uv_async_init(&loop_, &wake_, [](uv_async_t* wake) { static_cast<UvLoop*>(wake->data)->drain(); }),
           "uv_async_init");
  wake_.data = this;
  thread_ = std::thread([this] { run(); });
  id_ = thread_.get_id();
}

UvLoop::~UvLoop() {
  if (thread_.joinable()) UvLoop::end(nullptr);
}

void UvLoop::end(std::function<void()> last) {
  post([this, last = std::move(last)] {
    if (last) last();
    stopping_ = true;
    uv_stop(&loop_);
  });
  thread_.join();
}

uv_buf_t UvLoop::input_of(const uv_loop_t& loop) {
  std::vector<char>& input = static_cast<UvLoop*>(loop.data)->input_;
  return uv_buf_init(input.data(), static_cast<unsigned>(input.size()));
}

void UvLoop::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  tasks_.push_back(std::move(task));
  uv_async_send(&wake_);
}

void UvLoop::drain() {
  std::vector<std::function<void()>> tasks;
  {
    const std::lock_guard lock(mutex_);
    tasks.swap(tasks_);
  }
  for (auto& task : tasks) {
    if (!stopping_) task();
  }
}

void UvLoop::run() {
  support::begin_own_thread("shardwire");
  while (!stopping_) uv_run(&loop_, UV_RUN_DEFAULT);
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;  // no call wakes it any more
  }
  drain();  // discards tasks that will never run
  // The owners are destroyed; the wake-up handle and handles with pending close callbacks remain.
  uv_close(reinterpret_cast<uv_handle_t*>(&wake_), nullptr);
  while (uv_run(&loop_, UV_RUN_DEFAULT) != 0) {
  }
  uv_loop_close(&loop_);
}

namespace {

class LoopAlarm final : public Alarm {
 public:
  explicit LoopAlarm(UvLoop& loop) {
    handle_ = make_handle<uv_timer_t>([&](auto* h) { return uv_timer_init(loop.raw(), h); }, "uv_timer_init");
    handle_->data = this;
  }

  void start(std::chrono::nanoseconds delay, std::function<void()> task) override {
    task_ = std::move(task);
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(std::max(delay, std::chrono::nanoseconds(0)));
    // The loop's own time stays as it is: libuv runs timers until none is due by it, and would run nothing else if timers
    // that start themselves again moved it on.
    const std::uint64_t real = uv_hrtime() / 1'000'000;
    const std::uint64_t passed = std::max(real, uv_now(handle_->loop)) - uv_now(handle_->loop);
    uv_timer_start(
        handle_.get(),
        [](uv_timer_t* timer) {
          if (timer->data == nullptr) return;
          // The task may start the alarm again or destroy it.
          const auto due = std::move(static_cast<LoopAlarm*>(timer->data)->task_);
          if (due) due();
        },
        passed + static_cast<std::uint64_t>(wait.count()), 0);
  }

  void stop() override {
    task_ = nullptr;
    uv_timer_stop(handle_.get());
  }

 private:
  std::function<void()> task_;
  HandleOwner<uv_timer_t> handle_;
};

class UvPolling final : public Polling {
 public:
  UvPolling(UvLoop& loop, std::function<void()> task)
      : loop_(loop),
        task_(std::move(task)),
        prepare_(make_handle<uv_prepare_t>([&](auto* h) { return uv_prepare_init(loop.raw(), h); }, "uv_prepare_init")),
        idle_(make_handle<uv_idle_t>([&](auto* h) { return uv_idle_init(loop.raw(), h); }, "uv_idle_init")) {
    prepare_->data = this;
    uv_prepare_start(prepare_.get(), [](uv_prepare_t* prepare) {
      if (prepare->data != nullptr) static_cast<UvPolling*>(prepare->data)->task_();
    });
  }

  void let_sleep(bool sleeps) override {
    if (sleeps) {
      uv_idle_stop(idle_.get());
    } else {
      uv_idle_start(idle_.get(), [](uv_idle_t*) {});  // an active idle handle keeps the loop from sleeping
    }
  }
  std::unique_ptr<Watch> watch(int descriptor) override {
    class Watched final : public Watch {
     public:
      explicit Watched(HandleOwner<uv_poll_t> poll) : poll_(std::move(poll)) {
        check_uv(uv_poll_start(poll_.get(), UV_READABLE, [](uv_poll_t*, int, int) {}), "uv_poll_start");
      }

     private:
      HandleOwner<uv_poll_t> poll_;
    };
    return std::make_unique<Watched>(
        make_handle<uv_poll_t>([&](auto* h) { return uv_poll_init(loop_.raw(), h, descriptor); }, "uv_poll_init"));
  }
  void stop() override {
    uv_idle_stop(idle_.get());
    uv_prepare_stop(prepare_.get());
  }

 private:
  UvLoop& loop_;
  std::function<void()> task_;
  HandleOwner<uv_prepare_t> prepare_;
  HandleOwner<uv_idle_t> idle_;
};

}  // namespace

std::unique_ptr<Alarm> UvLoop::make_alarm() {
  return std::make_unique<LoopAlarm>(*this);
}

void UvLoop::fill_random(std::span<std::byte> into) {
  check_uv(uv_random(nullptr, nullptr, into.data(), into.size(), 0, nullptr), "uv_random");
}

std::shared_ptr<Stream> UvLoop::connect(const SocketAddress& to, Stream::Events events) {
  return SocketStream::connect(*this, to, std::move(events));
}

std::shared_ptr<Stream> UvLoop::connect_local(const std::string& name, Stream::Events events) {
  return SocketStream::connect_local(*this, name, std::move(events));
}

std::unique_ptr<Listener> UvLoop::listen(const SocketAddress& at, Incoming incoming) {
  return std::make_unique<SocketListener>(*this, at, std::move(incoming));
}

std::unique_ptr<Listener> UvLoop::listen_local(const std::string& name, Incoming incoming) {
  return std::make_unique<SocketListener>(*this, name, std::move(incoming));
}

std::unique_ptr<Polling> UvLoop::poll(std::function<void()> task) {
  return std::make_unique<UvPolling>(*this, std::move(task));
}

}  // namespace shardwire
