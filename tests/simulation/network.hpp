// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "bugs.hpp"
#include "events.hpp"
#include "runtime/addresses.hpp"
#include "runtime/stream.hpp"

namespace shardwire::simulation {

class SimulatedListener;
class Wire;

/// The network between simulated hosts: who reaches whom, how long it takes, and the sockets. Its kernels go on with
/// the sockets of a process that has ended.
class Network {
 public:
  /// Delay of everything, drawn anew for each packet.
  struct Delay {
    Duration lower = std::chrono::microseconds(20);
    Duration upper = std::chrono::microseconds(200);
  };
  /// A kernel gives up a connection after this long without an answer, see socket_stream.cpp, or an attempt to connect.
  static constexpr std::chrono::seconds unanswered_limit{30};
  static constexpr std::chrono::seconds connecting_limit{60};

  Network(Events& events, Delay delay, Bug bug) : events_(events), delay_(delay), bug_(bug) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  [[nodiscard]] Events& events() { return events_; }
  [[nodiscard]] Bug bug() const { return bug_; }
  static std::string address_of(int host);

  // --- faults ---

  /// Nothing passes between the two hosts until then.
  void cut(int a, int b, Clock::Time until);
  /// Packets from and to the host take `times` as long until then.
  void slow_down(int host, unsigned times, Clock::Time until);
  /// The host of a process has lost its power: its peers hear nothing any more.
  void vanished(Process& process);
  /// The process has been killed: its kernel closes its sockets.
  void killed(Process& process);

  /// When a packet that leaves now arrives; packets that meet a cut are sent again after it.
  [[nodiscard]] Clock::Time arrival(int from, int to);
  [[nodiscard]] bool is_cut(int a, int b) const;

  // --- sockets ---

  std::shared_ptr<Stream> connect(Process& process, const SocketAddress& to, Stream::Events events);
  std::unique_ptr<Listener> listen(Process& process, const SocketAddress& at, Sockets::Incoming incoming);
  /// Streams and listeners that processes have open.
  [[nodiscard]] std::size_t open_sockets() const { return open_sockets_; }

 private:
  friend class SimulatedListener;
  friend class SimulatedStream;
  friend class Wire;
  void try_to_connect(const std::shared_ptr<Wire>& wire, const SocketAddress& to, Clock::Time until);

  Events& events_;
  Delay delay_;
  Bug bug_;
  std::map<std::pair<int, int>, Clock::Time> cuts_;  // lower host first
  struct Slow {
    unsigned times;
    Clock::Time until;
  };
  std::map<int, Slow> slow_;
  using Address = std::pair<std::string, std::uint16_t>;
  std::map<Address, SimulatedListener*> listeners_;
  std::set<Address> silent_;  // of hosts without power
  std::map<std::uint64_t, std::weak_ptr<Wire>> wires_;
  std::uint64_t next_wire_ = 1;
  std::uint16_t next_port_ = 40000;
  std::size_t open_sockets_ = 0;
};

}  // namespace shardwire::simulation
