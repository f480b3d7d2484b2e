// SPDX-License-Identifier: Apache-2.0
#include "scenario.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

#include "handles/session_state.hpp"
#include "surroundings.hpp"
#include "thread.hpp"

namespace shardwire::simulation {

using namespace std::chrono_literals;

std::vector<FabricKind> fabrics_of(std::string_view name) {
  if (name == "maps") return {FabricKind::host, FabricKind::streams};
  if (name == "reads") return {FabricKind::rdma, FabricKind::streams};
  return {name == "messages" ? FabricKind::network : FabricKind::streams};
}

Scenario::Scenario(int members, std::vector<FabricKind> kinds)
    : kinds_(std::move(kinds)), last_(static_cast<std::size_t>(members)) {
  for (int member = 0; member < members; ++member) new_process(member);
  of_this_thread() = this;
}

Scenario::~Scenario() {
  of_this_thread() = nullptr;
  events_.clear();  // what they capture uses the network
}

Process& Scenario::new_process(int member) {
  const int host = std::ranges::count(kinds_, FabricKind::host) > 0 ? 0 : member;
  processes_.push_back(std::make_unique<Process>(events_, static_cast<int>(processes_.size()) + 1, host));
  return *(last_[static_cast<std::size_t>(member)] = processes_.back().get());
}

Session Scenario::join(Bootstrap bootstrap, SessionOptions options) {
  const auto member = static_cast<std::size_t>(bootstrap.rank);
  if (!joined_.insert(bootstrap.rank).second) new_process(bootstrap.rank);
  bootstrap.address = Network::address_of(0);
  bootstrap.run_id = "scenario";
  options.progress = ProgressMode::wakeup();
  options.transport = "simulated";
  return shardwire::detail::SessionState::join_in(
      [&] { return surroundings_of(*last_[member], fabrics_, processes_.size() + member, kinds_); },
      std::move(bootstrap), options);
}

Session Scenario::join(int member, SessionOptions options) {
  Bootstrap bootstrap;
  bootstrap.rank = member;
  bootstrap.world_size = static_cast<int>(last_.size());
  bootstrap.port = 29501;
  return join(std::move(bootstrap), std::move(options));
}

void Scenario::together(const std::vector<int>& members, const std::function<void(int)>& body) {
  std::vector<std::shared_ptr<SimulatedThread>> threads;
  std::string failure;
  for (const int member : members) {
    threads.push_back(std::make_shared<SimulatedThread>(events_, process(member), Bug::none, [&, member] {
      try {
        body(member);
      } catch (const std::exception& error) {
        if (failure.empty()) failure = "member " + std::to_string(member) + ": " + error.what();
      }
    }));
    SimulatedThread::start(threads.back());
  }
  wait_until([&] { return std::ranges::all_of(threads, [](const auto& thread) { return thread->ended(); }); });
  if (!failure.empty()) throw std::runtime_error(failure);
}

void Scenario::pass(Duration time) {
  of_this_thread()->until([] { return false; }, time);
}

void Scenario::wait_until(const std::function<bool()>& ready) {
  of_this_thread()->until(ready, forever);
}

bool Scenario::until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) {
  constexpr std::chrono::nanoseconds longest = 1h;
  // A case that fails leaves processes stopped, and destructors that wait for them cannot throw.
  if (std::uncaught_exceptions() > 0) {
    for (const auto& process : processes_) resume(*process);
  }
  const Clock::Time end = now() + std::min(timeout, longest);
  bool is_ready = false;
  in_event([&] {
    while (!(is_ready = ready()) && events_.step(end)) continue;
  });
  if (!events_.escaped().empty()) throw std::runtime_error("an exception reached a loop: " + events_.escaped().front());
  if (!is_ready && timeout > longest) throw std::runtime_error("a call waits for ever");
  return is_ready;
}

void Scenario::in_event(const std::function<void()>& task) {
  Waiting* const before = std::exchange(of_this_thread(), nullptr);
  task();
  of_this_thread() = before;
}

void Scenario::resume(Process& process) {
  in_event([&] { process.resume(); });
}

void Scenario::kill(int member, std::optional<Session>& session) {
  Process& killed = process(member);
  in_event([&] {
    killed.end();
    network_.killed(killed);
    fabrics_.ended(killed, false);
    groups_.ended(killed);
    session.reset();
  });
  killed.end_threads();
}

Restore moving(Scenario& scenario, Session& session, const Catalog& wanted, const RestoreOptions& options,
               ByteCount bytes) {
  Restore restore = session.restore(wanted, options);
  const auto done = std::make_shared<ByteCount>(0);  // owners: this call and the callback
  restore.on_progress([done](const Progress& progress) { *done = progress.done_bytes; }, 0s);
  scenario.wait_until([&] { return *done >= bytes || restore.poll(); });
  if (restore.poll()) restore.wait();
  restore.on_progress(nullptr);
  return restore;
}

}  // namespace shardwire::simulation
