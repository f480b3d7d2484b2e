// SPDX-License-Identifier: Apache-2.0
// Outline: the wire; the stream as its process sees it.
#include "stream.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::simulation {

// --- the wire ---

bool Wire::connects(int host_a, int host_b) const {
  if (processes_[1] == nullptr) return false;
  const int a = processes_[0]->host();
  const int b = processes_[1]->host();
  return (a == host_a && b == host_b) || (a == host_b && b == host_a);
}

void Wire::connected() {
  if (streams_[0] != nullptr) streams_[0]->connected();
}

void Wire::failed(const std::string& why) {
  end_stream(0, why);
}

void Wire::end_stream(int end, const std::string& why) {
  if (streams_[index(end)] != nullptr) streams_[index(end)]->ended(why);
}

void Wire::time_out() {
  for (const int end : {0, 1}) {
    if (processes_[index(end)] == nullptr) continue;
    network_.events().after({}, processes_[index(end)], "unanswered",
                            [self = shared_from_this(), end] { self->end_stream(end, "connection timed out"); });
  }
}

void Wire::process_ended(const Process& process, bool silent) {
  for (const int end : {0, 1}) {
    if (processes_[index(end)] != &process || directions_[index(end)].ended) continue;
    if (network_.bug() == Bug::deaf) {
      silent_ = true;
    } else if (!silent) {
      close(end, has_unread(end));
    } else if (!std::exchange(silent_, true)) {
      network_.events().after(Network::unanswered_limit, nullptr, "unanswered",
                              [self = shared_from_this()] { self->time_out(); });
    }
    streams_[index(end)] = nullptr;
  }
}

void Wire::pump(int from) {
  Direction& direction = directions_[index(from)];
  SimulatedStream* const stream = streams_[index(from)];
  if (stream == nullptr || !stream->may_send() || direction.ended) return;
  Random& random = network_.events().random();
  while (stream->queued_bytes() > 0 && direction.flying_bytes < window_bytes) {
    const std::size_t room = window_bytes - direction.flying_bytes;
    const bool splits = random.percent(10);  // packets end anywhere
    Bytes bytes = stream->take(splits ? 1 + static_cast<std::size_t>(random.below(64)) : room);
    if (directions_[index(1 - from)].ended) continue;  // the other end is closed: nobody reads it
    direction.last_arrival =
        std::max(direction.last_arrival, network_.arrival(process(from).host(), process(1 - from).host()));
    direction.flying_bytes += bytes.size();
    direction.flying.push_back({direction.last_arrival, std::move(bytes), false});
  }
  schedule(1 - from);
}

void Wire::close(int from, bool reset) {
  Direction& direction = directions_[index(from)];
  streams_[index(from)] = nullptr;
  if (std::exchange(direction.ended, true) || processes_[1] == nullptr) return;
  direction.last_arrival =
      std::max(direction.last_arrival, network_.arrival(process(from).host(), process(1 - from).host()));
  direction.flying.push_back({direction.last_arrival, {}, reset});
  schedule(1 - from);
}

void Wire::schedule(int to) {
  Direction& direction = directions_[index(1 - to)];
  if (direction.due || direction.flying.empty() || silent_) return;
  direction.due = true;
  network_.events().at(direction.flying.front().arrives, processes_[index(to)], "deliver",
                       [self = shared_from_this(), to] { self->deliver(to); });
}

void Wire::deliver(int to) {
  constexpr std::size_t max_read_bytes = 64 * 1024;
  Direction& direction = directions_[index(1 - to)];
  direction.due = false;
  SimulatedStream* const stream = streams_[index(to)];
  if (stream == nullptr || !stream->reading() || direction.flying.empty() || silent_) return;
  Events& events = network_.events();
  const int from_host = process(1 - to).host();
  const int to_host = process(to).host();
  if (network_.is_cut(from_host, to_host)) {
    direction.flying.front().arrives = network_.arrival(from_host, to_host);
    return schedule(to);
  }
  if (direction.flying.front().bytes.empty()) {
    const bool reset = direction.flying.front().reset;
    events.trace().line(events.now_ns(), process(to).number(), "wire {} {}", number_, reset ? "reset" : "closed");
    direction.flying.clear();
    return stream->ended(reset ? "connection reset by peer" : "the peer closed its connection");
  }
  if (network_.bug() == Bug::swapped && direction.flying.size() > 1 && !direction.flying[1].bytes.empty() &&
      events.random().percent(5)) {
    std::swap(direction.flying[0].bytes, direction.flying[1].bytes);
  }
  Bytes bytes = std::move(direction.flying.front().bytes);
  direction.flying.pop_front();
  while (!direction.flying.empty() && direction.flying.front().arrives <= events.now() &&
         !direction.flying.front().bytes.empty() && bytes.size() < max_read_bytes) {
    const Bytes& next = direction.flying.front().bytes;
    bytes.insert(bytes.end(), next.begin(), next.end());
    direction.flying.pop_front();
  }
  direction.flying_bytes -= bytes.size();
  events.trace().line(events.now_ns(), process(to).number(), "wire {} {} bytes", number_, bytes.size());
  SimulatedStream* const sender = streams_[index(1 - to)];
  if (sender != nullptr && sender->queued_bytes() > 0 && !std::exchange(direction.acknowledging, true)) {
    events.at(network_.arrival(to_host, from_host), &process(1 - to), "acknowledged",
              [self = shared_from_this(), from = 1 - to] {
                self->directions_[index(from)].acknowledging = false;
                self->pump(from);
                if (self->streams_[index(from)] != nullptr) self->streams_[index(from)]->has_drained();
              });
  }
  schedule(to);
  stream->received(bytes);  // it may drop the stream
}

// --- the stream ---

SimulatedStream::SimulatedStream(Network& network, std::shared_ptr<Wire> wire, int end, Events events)
    : network_(network), wire_(std::move(wire)), end_(end), events_(std::move(events)), connected_(end == 1) {
  wire_->attach(end_, this);
  ++network_.open_sockets_;
}

SimulatedStream::~SimulatedStream() {
  drop();
  --network_.open_sockets_;
}

void SimulatedStream::start_reading() {
  reading_ = true;
  wire_->schedule(end_);
}

void SimulatedStream::write(Bytes bytes, std::span<const int>, bool notice) {
  if (!open_ || bytes.empty()) return;
  queued_bytes_ += bytes.size();
  if (notice) queued_notice_bytes_ += bytes.size();
  queue_.push_back({std::move(bytes), 0, notice});
  wire_->pump(end_);
}

Bytes SimulatedStream::take(std::size_t limit) {
  Bytes taken;
  while (!queue_.empty() && taken.size() < limit) {
    Chunk& chunk = queue_.front();
    const std::size_t part = std::min(limit - taken.size(), chunk.bytes.size() - chunk.sent);
    const auto first = chunk.bytes.begin() + static_cast<std::ptrdiff_t>(chunk.sent);
    taken.insert(taken.end(), first, first + static_cast<std::ptrdiff_t>(part));
    chunk.sent += part;
    if (chunk.sent < chunk.bytes.size()) break;
    if (chunk.notice) queued_notice_bytes_ -= chunk.bytes.size();
    queue_.pop_front();
  }
  queued_bytes_ -= taken.size();
  return taken;
}

void SimulatedStream::received(std::span<const std::byte> bytes) {
  const auto keep = shared_from_this();
  const auto notify = events_.data;
  if (notify) notify(bytes);
}

void SimulatedStream::ended(const std::string& why) {
  const auto keep = shared_from_this();
  reading_ = false;
  if (finishing_) return close(false);
  const auto notify = events_.ended;
  if (notify) notify(why);
}

void SimulatedStream::connected() {
  const auto keep = shared_from_this();
  connected_ = true;
  wire_->pump(end_);
  const auto notify = events_.connected;
  if (notify) notify();
}

void SimulatedStream::has_drained() {
  const auto keep = shared_from_this();
  if (finishing_ && queue_.empty()) return close(false);
  const auto notify = events_.drained;
  if (notify) notify();
}

void SimulatedStream::drop() {
  if (open_) close(wire_->has_unread(end_));
}

void SimulatedStream::close(bool reset) {
  if (!std::exchange(open_, false)) return;
  const auto keep = std::move(until_flushed_);
  reading_ = false;
  events_ = {};
  queue_.clear();
  queued_bytes_ = queued_notice_bytes_ = 0;
  wire_->close(end_, reset);
}

void SimulatedStream::finish(std::chrono::nanoseconds limit) {
  events_ = {};
  if (!open_) return;
  if (queue_.empty()) return close(false);
  finishing_ = true;
  reading_ = false;
  until_flushed_ = shared_from_this();
  network_.events().after(limit, nullptr, "flush limit", [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->close(true);
  });
}

support::Descriptor SimulatedStream::take_descriptor() {
  throw Error(ErrorCode::unsupported, "simulated streams carry no descriptors");
}

// The connection lives on with the other end, and nothing more passes it.
support::Descriptor SimulatedStream::release() {
  const auto keep = shared_from_this();
  open_ = false;
  reading_ = false;
  events_ = {};
  wire_->attach(end_, nullptr);
  return {};
}

std::string SimulatedStream::own_host() const {
  return Network::address_of(wire_->process(end_).host());
}

std::string SimulatedStream::peer_host() const {
  return Network::address_of(wire_->process(1 - end_).host());
}

}  // namespace shardwire::simulation
