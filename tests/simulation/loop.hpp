// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "events.hpp"
#include "network.hpp"
#include "runtime/call_thread.hpp"
#include "runtime/loop.hpp"
#include "runtime/waiting.hpp"

namespace shardwire::simulation {

/// The loop of a simulated session: the clock is that of the events, all threads are one.
class SimulatedLoop final : public Loop {
 public:
  /// `seed`: of its random numbers.
  SimulatedLoop(Network& network, Process& process, std::uint64_t seed)
      : network_(network), process_(process), random_(seed), state_(std::make_shared<State>()) {}
  ~SimulatedLoop() override { SimulatedLoop::end(nullptr); }
  SimulatedLoop(const SimulatedLoop&) = delete;
  SimulatedLoop& operator=(const SimulatedLoop&) = delete;

  using Loop::end;
  void end(std::function<void()> last) override;
  /// A simulated thread goes on once the task has run.
  void post(std::function<void()> task) override;
  /// All sessions run on the one thread, so that no call ever waits for it; other threads of a session are simulated.
  [[nodiscard]] bool is_current() const override { return Waiting::of_this_thread() == nullptr; }
  [[nodiscard]] bool waits_for_itself() const override { return false; }  // what a session does here is done at once
  [[nodiscard]] Time now() const override { return network_.events().now(); }
  /// Delays are rounded up to milliseconds, as those of UvLoop.
  std::unique_ptr<Alarm> make_alarm() override;
  void fill_random(std::span<std::byte> into) override;
  std::shared_ptr<Stream> connect(const SocketAddress& to, Stream::Events events) override {
    return network_.connect(process_, to, std::move(events));
  }
  std::shared_ptr<Stream> connect_local(const std::string& name, Stream::Events events) override;
  std::unique_ptr<Listener> listen(const SocketAddress& at, Incoming incoming) override {
    return network_.listen(process_, at, std::move(incoming));
  }
  std::unique_ptr<Listener> listen_local(const std::string& name, Incoming incoming) override;
  [[nodiscard]] std::string interface_of(const std::string&) const override { return "simulated"; }
  /// Copies run on the loop.
  [[nodiscard]] unsigned copy_threads(unsigned) const override { return 0; }
  std::unique_ptr<Polling> poll(std::function<void()> task) override;
  /// A simulated thread of the process.
  std::unique_ptr<CallThread> start_thread(std::function<void()> body);

  /// Alarms of all simulated loops of this process that exist.
  [[nodiscard]] static std::size_t alarms();

 private:
  void add(std::function<void()> task);

  struct State {
    std::vector<std::function<void()>> tasks;
    bool draining = false;
    bool ended = false;
  };

  Network& network_;
  Process& process_;
  Random random_;
  std::shared_ptr<State> state_;  // owners: this and its events
};

}  // namespace shardwire::simulation
