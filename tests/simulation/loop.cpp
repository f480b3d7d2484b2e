// SPDX-License-Identifier: Apache-2.0
#include "loop.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "thread.hpp"

namespace shardwire::simulation {

namespace {

std::size_t alarm_count = 0;

class SimulatedAlarm final : public Alarm {
 public:
  SimulatedAlarm(Network& network, Process& process)
      : events_(network.events()),
        process_(process),
        late_(network.bug() == Bug::late ? 5000 : 0),
        mute_(network.bug() == Bug::mute) {
    ++alarm_count;
  }
  ~SimulatedAlarm() override {
    --alarm_count;
    ++setting_->number;  // an event under way finds another number
  }
  SimulatedAlarm(const SimulatedAlarm&) = delete;
  SimulatedAlarm& operator=(const SimulatedAlarm&) = delete;

  void start(std::chrono::nanoseconds delay, std::function<void()> task) override {
    const auto wait =
        std::chrono::ceil<std::chrono::milliseconds>(std::max(delay, std::chrono::nanoseconds(0))) + late_;
    setting_->task = std::move(task);
    const std::uint64_t number = ++setting_->number;
    if (mute_ && events_.random().percent(10)) return;
    events_.after(wait, &process_, "timer", [setting = setting_, number] {
      if (setting->number != number) return;
      const auto due = std::move(setting->task);  // it may start the alarm again, or destroy it
      if (due) due();
    });
  }
  void stop() override {
    ++setting_->number;
    setting_->task = nullptr;
  }

 private:
  struct Setting {
    std::uint64_t number = 0;
    std::function<void()> task;
  };
  Events& events_;
  Process& process_;
  std::chrono::milliseconds late_;
  bool mute_;
  std::shared_ptr<Setting> setting_ = std::make_shared<Setting>();  // owners: this and its events
};

class SimulatedPolling final : public Polling {
 public:
  SimulatedPolling(Events& events, Process& process, std::function<void()> task)
      : events_(events), process_(process), number_(process.each_iteration([this, task = std::move(task)] {
          task();
          if (!sleeps_) again();
        })) {}
  ~SimulatedPolling() override { stop(); }
  SimulatedPolling(const SimulatedPolling&) = delete;
  SimulatedPolling& operator=(const SimulatedPolling&) = delete;

  void let_sleep(bool sleeps) override { sleeps_ = sleeps; }
  // Simulated fabrics wake the process by events.
  std::unique_ptr<Watch> watch(int) override { return std::make_unique<Watch>(); }
  void stop() override {
    process_.no_iteration(number_);
    sleeps_ = true;
  }

 private:
  void again() {
    if (std::exchange(*due_, true)) return;
    events_.after(std::chrono::microseconds(5), &process_, "iteration", [due = due_] { *due = false; });
  }

  Events& events_;
  Process& process_;
  bool sleeps_ = true;
  std::shared_ptr<bool> due_ = std::make_shared<bool>(false);  // owners: this and its events
  std::uint64_t number_;
};

class ThreadHandle final : public CallThread {
 public:
  explicit ThreadHandle(std::shared_ptr<SimulatedThread> thread) : thread_(std::move(thread)) {}
  [[nodiscard]] bool is_current() const override { return thread_->id() == std::this_thread::get_id(); }
  void join() override {}  // it keeps itself until its end
  void detach() override {}

 private:
  std::shared_ptr<SimulatedThread> thread_;  // owners: this and itself
};

}  // namespace

std::size_t SimulatedLoop::alarms() {
  return alarm_count;
}

void SimulatedLoop::end(std::function<void()> last) {
  if (state_->ended) return;
  Waiting* const caller =
      std::exchange(Waiting::of_this_thread(), nullptr);  // this thread is that of the loop meanwhile
  if (last) last();
  Waiting::of_this_thread() = caller;
  state_->ended = true;
  state_->tasks.clear();
}

void SimulatedLoop::post(std::function<void()> task) {
  if (state_->ended) return;
  if (Waiting* const thread = Waiting::of_this_thread()) {
    // Owners: this call and the task, which is dropped if the loop ends.
    auto left = std::make_shared<std::function<void()>>(std::move(task));
    const std::weak_ptr<const void> waiting = left;
    add([left = std::move(left)] { (*left)(); });
    thread->until([&] { return waiting.expired(); }, Waiting::forever);
  } else {
    add(std::move(task));
  }
}

void SimulatedLoop::add(std::function<void()> task) {
  state_->tasks.push_back(std::move(task));
  if (std::exchange(state_->draining, true)) return;
  network_.events().after(network_.events().random().between(Duration(100), Duration(5000)), &process_, "tasks",
                          [state = state_] {
                            state->draining = false;
                            for (auto& one : std::exchange(state->tasks, {})) {
                              if (!state->ended) one();
                            }
                          });
}

std::unique_ptr<CallThread> SimulatedLoop::start_thread(std::function<void()> body) {
  auto thread = std::make_shared<SimulatedThread>(network_.events(), process_, network_.bug(), std::move(body));
  SimulatedThread::start(thread);
  return std::make_unique<ThreadHandle>(std::move(thread));
}

std::unique_ptr<Alarm> SimulatedLoop::make_alarm() {
  return std::make_unique<SimulatedAlarm>(network_, process_);
}

void SimulatedLoop::fill_random(std::span<std::byte> into) {
  while (!into.empty()) {
    const std::uint64_t number = random_.next();
    const std::size_t part = std::min(into.size(), sizeof number);
    std::memcpy(into.data(), &number, part);
    into = into.subspan(part);
  }
}

std::shared_ptr<Stream> SimulatedLoop::connect_local(const std::string& name, Stream::Events) {
  throw Error(ErrorCode::unsupported, "there are no simulated local sockets: " + name);
}

std::unique_ptr<Listener> SimulatedLoop::listen_local(const std::string& name, Incoming) {
  throw Error(ErrorCode::unsupported, "there are no simulated local sockets: " + name);
}

std::unique_ptr<Polling> SimulatedLoop::poll(std::function<void()> task) {
  return std::make_unique<SimulatedPolling>(network_.events(), process_, std::move(task));
}

}  // namespace shardwire::simulation
