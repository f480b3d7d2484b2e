// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "fabric.hpp"
#include "groups.hpp"
#include "runtime/waiting.hpp"
#include "shardwire/session.hpp"

namespace shardwire::simulation {

/// Sets of fabrics, by name: each moves bytes in another way.
inline constexpr const char* made_fabrics[] = {"maps", "reads", "messages", "streams"};
std::vector<FabricKind> fabrics_of(std::string_view name);

/// A job whose sessions a test uses by their public handles, in made time. Time passes only in calls that wait: they run the
/// events of all members until they may go on. Calls with a timeout of their own, such as
/// Restore::wait_for(), use the real clock: wait_until() takes their place.
/// Threads: one scenario on a thread at a time. A test that waits for an hour fails.
class Scenario final : public Waiting {
 public:
  /// `kinds`: the fabrics of every member. All are on one host if these map memory, else each is on a host of its own.
  explicit Scenario(int members, std::vector<FabricKind> kinds = {FabricKind::streams});
  /// Requires: its sessions have ended.
  ~Scenario();
  Scenario(const Scenario&) = delete;
  Scenario& operator=(const Scenario&) = delete;

  /// A session in a new process of the member. `bootstrap`: its rank and its size count.
  Session join(Bootstrap bootstrap, SessionOptions options = {});
  Session join(int member, SessionOptions options = {});
  /// Runs `body(member)` on a thread of each of these members, before it has joined or after it, and rethrows the first failure.
  void together(const std::vector<int>& members, const std::function<void(int)>& body);

  [[nodiscard]] Clock::Time now() const { return events_.now(); }
  /// On the thread of the test, or on one of together().
  void pass(Duration time);
  void wait_until(const std::function<bool()>& ready);

  // --- faults ---

  /// The last process of the member.
  [[nodiscard]] Process& process(int member) { return *last_[static_cast<std::size_t>(member)]; }
  void resume(Process& process);
  /// Ends the last process of the member, and with it this session. Its kernel closes its sockets.
  void kill(int member, std::optional<Session>& session);

 private:
  bool until(const std::function<bool()>& ready, std::chrono::nanoseconds timeout) override;
  /// As an event: no call in it waits.
  void in_event(const std::function<void()>& task);
  Process& new_process(int member);

  Events events_{1, false};
  Network network_{events_, {}, Bug::none};
  FabricNetwork fabrics_{network_};
  GroupNetwork groups_{fabrics_};
  std::vector<FabricKind> kinds_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::vector<Process*> last_;  // by member
  std::set<int> joined_;        // members whose last process has, or had, a session
};

/// Stops the last process of a member, as by SIGSTOP, during its lifetime.
class Stopped {
 public:
  Stopped(Scenario& scenario, int member) : scenario_(scenario), process_(scenario.process(member)) { process_.stop(); }
  ~Stopped() { scenario_.resume(process_); }
  Stopped(const Stopped&) = delete;
  Stopped& operator=(const Stopped&) = delete;

 private:
  Scenario& scenario_;
  Process& process_;
};

/// Starts a restore, and returns once so many bytes have arrived. Errors: throws the error of a restore that ends before.
Restore moving(Scenario& scenario, Session& session, const Catalog& wanted, const RestoreOptions& options,
               ByteCount bytes = 1);

}  // namespace shardwire::simulation
