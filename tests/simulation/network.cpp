// SPDX-License-Identifier: Apache-2.0
// Outline: faults; times; connecting and listening.
#include "network.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "stream.hpp"

namespace shardwire::simulation {

namespace {

constexpr std::chrono::milliseconds longest_retransmission(200);

std::pair<int, int> pair_of(int a, int b) {
  return {std::min(a, b), std::max(a, b)};
}

}  // namespace

std::string Network::address_of(int host) {
  return fmt::format("10.0.0.{}", host + 1);
}

// --- faults ---

void Network::cut(int a, int b, Clock::Time until) {
  auto& end = cuts_[pair_of(a, b)];
  end = std::max(end, until);
  if (until - events_.now() <= unanswered_limit) return;
  events_.after(unanswered_limit, nullptr, "unanswered", [this, a, b, last = next_wire_] {
    if (!is_cut(a, b)) return;
    for (const auto& [number, weak] : std::map(wires_)) {
      const auto wire = weak.lock();
      if (number >= last || !wire || !wire->connects(a, b)) continue;
      wire->time_out();
    }
  });
}

void Network::slow_down(int host, unsigned times, Clock::Time until) {
  slow_[host] = {times, until};
}

void Network::vanished(Process& process) {
  for (const auto& [address, listener] : listeners_) {
    if (&listener->process() == &process) silent_.insert(address);
  }
  for (const auto& [number, weak] : std::map(wires_)) {
    if (const auto wire = weak.lock()) wire->process_ended(process, true);
  }
}

void Network::killed(Process& process) {
  for (const auto& [number, weak] : std::map(wires_)) {
    if (const auto wire = weak.lock()) wire->process_ended(process, false);
  }
}

// --- times ---

bool Network::is_cut(int a, int b) const {
  const auto found = cuts_.find(pair_of(a, b));
  return found != cuts_.end() && found->second > events_.now();
}

Clock::Time Network::arrival(int from, int to) {
  Duration delay = events_.random().between(delay_.lower, delay_.upper);
  if (from == to) delay /= 4;
  unsigned times = 1;
  for (const int host : {from, to}) {
    const auto slow = slow_.find(host);
    if (slow != slow_.end() && slow->second.until > events_.now()) times = std::max(times, slow->second.times);
  }
  delay *= times;
  if (!is_cut(from, to)) return events_.now() + delay;
  return cuts_.at(pair_of(from, to)) + delay + events_.random().between(Duration::zero(), longest_retransmission);
}

// --- connecting and listening ---

std::shared_ptr<Stream> Network::connect(Process& process, const SocketAddress& to, Stream::Events events) {
  const auto wire = std::make_shared<Wire>(*this, next_wire_++, process);
  wires_.emplace(wire->number(), wire);
  auto stream = std::make_shared<SimulatedStream>(*this, wire, 0, std::move(events));
  try_to_connect(wire, to, events_.now() + connecting_limit);
  return stream;
}

void Network::try_to_connect(const std::shared_ptr<Wire>& wire, const SocketAddress& to, Clock::Time until) {
  const int from = wire->process(0).host();
  const int host = std::stoi(to.host.substr(to.host.rfind('.') + 1)) - 1;
  const auto give_up = [this, wire, until](const char* why) {
    events_.at(until, &wire->process(0), why, [wire, why] { wire->failed(why); });
  };
  const Clock::Time arrives = arrival(from, host);
  if (arrives > until) return give_up("connection timed out");
  events_.at(arrives, nullptr, "syn", [this, wire, to, until, from, host, give_up] {
    if (wire->closed(0)) return;
    if (is_cut(from, host)) return try_to_connect(wire, to, until);
    const std::pair address(to.host, to.port);
    if (silent_.contains(address)) return give_up("connection timed out");
    const auto found = listeners_.find(address);
    if (found == listeners_.end()) {
      return events_.at(arrival(host, from), &wire->process(0), "refused",
                        [wire] { wire->failed("connection refused"); });
    }
    Process& server = found->second->process();
    wire->reached(server);
    events_.at(arrival(host, from), &wire->process(0), "connected", [wire] { wire->connected(); });
    events_.after({}, &server, "accept", [this, wire, address] {
      const auto listener = listeners_.find(address);
      if (listener == listeners_.end() || &listener->second->process() != &wire->process(1)) return wire->turned_away();
      listener->second->accept(wire);
    });
  });
}

std::unique_ptr<Listener> Network::listen(Process& process, const SocketAddress& at, Sockets::Incoming incoming) {
  SocketAddress address = at;
  if (address.port == 0) address.port = next_port_++;
  if (listeners_.contains({address.host, address.port})) {
    throw PortTaken(ErrorCode::invalid_argument, fmt::format("cannot listen on {} port {}", at.host, at.port));
  }
  return std::make_unique<SimulatedListener>(*this, process, std::move(address), std::move(incoming));
}

SimulatedListener::SimulatedListener(Network& network, Process& process, SocketAddress address,
                                     Sockets::Incoming incoming)
    : network_(network), process_(process), address_(std::move(address)), incoming_(std::move(incoming)) {
  network_.listeners_[{address_.host, address_.port}] = this;
  network_.silent_.erase({address_.host, address_.port});
  ++network_.open_sockets_;
}

SimulatedListener::~SimulatedListener() {
  network_.listeners_.erase({address_.host, address_.port});
  --network_.open_sockets_;
}

void SimulatedListener::accept(const std::shared_ptr<Wire>& wire) {
  bool opened = false;
  incoming_([&](Stream::Events events) -> std::shared_ptr<Stream> {
    opened = true;
    return std::make_shared<SimulatedStream>(network_, wire, 1, std::move(events));
  });
  if (!opened) wire->turned_away();
}

}  // namespace shardwire::simulation
