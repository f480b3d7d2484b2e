// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "network.hpp"

namespace shardwire::simulation {

class SimulatedStream;

/// One simulated connection: two directions, each with a socket buffer at both ends.
class Wire : public std::enable_shared_from_this<Wire> {
 public:
  Wire(Network& network, std::uint64_t number, Process& client) : network_(network), number_(number) {
    processes_[0] = &client;
  }
  ~Wire() { network_.wires_.erase(number_); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  /// A direction leads from end 0 or 1 to the other one.
  struct Direction {
    struct Segment {
      Clock::Time arrives;
      Bytes bytes;  // empty: the end
      bool reset = false;
    };
    std::deque<Segment> flying;  // also those that have arrived and are not read
    std::size_t flying_bytes = 0;
    Clock::Time last_arrival{};
    bool ended = false;  // the last segment is the end
    bool due = false;    // an event will deliver the next one
    bool acknowledging = false;
  };
  [[nodiscard]] std::uint64_t number() const { return number_; }
  /// Requires: end 0, or reached().
  [[nodiscard]] Process& process(int end) { return *processes_[index(end)]; }
  [[nodiscard]] bool connects(int host_a, int host_b) const;

  // --- from the network ---
  void reached(Process& server) { processes_[1] = &server; }
  /// This end sends nothing any more.
  [[nodiscard]] bool closed(int end) const { return directions_[index(end)].ended; }
  void connected();
  void failed(const std::string& why);
  /// The server has not accepted it.
  void turned_away() { close(1, true); }
  /// The kernels at both ends give up.
  void time_out();
  /// A process takes no part any more. `silent`: its peer hears nothing.
  void process_ended(const Process& process, bool silent);

  // --- from the streams ---
  void attach(int end, SimulatedStream* stream) { streams_[index(end)] = stream; }
  /// Sends as much of the stream's queue as the socket buffers hold.
  void pump(int from);
  /// No more data comes from this end. `reset`: unread data was discarded.
  void close(int from, bool reset);
  /// Makes sure that an event delivers what comes next to this end.
  void schedule(int to);
  [[nodiscard]] bool has_unread(int at) const { return !directions_[index(1 - at)].flying.empty(); }

 private:
  static constexpr std::size_t window_bytes = 64 * 1024;
  static std::size_t index(int end) { return static_cast<std::size_t>(end); }
  /// Delivers what has arrived, if it is read.
  void deliver(int to);
  void end_stream(int end, const std::string& why);

  Network& network_;
  std::uint64_t number_;
  std::array<Process*, 2> processes_{};
  std::array<SimulatedStream*, 2> streams_{};  // null: closed, or not accepted yet
  std::array<Direction, 2> directions_{};      // by the sending end
  bool silent_ = false;                        // one host has no power: nothing passes
};

/// One end of a wire, in the hands of a process.
class SimulatedStream final : public Stream, public std::enable_shared_from_this<SimulatedStream> {
 public:
  SimulatedStream(Network& network, std::shared_ptr<Wire> wire, int end, Events events);
  ~SimulatedStream() override;
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  void start_reading() override;
  void stop_reading() override { reading_ = false; }
  using Stream::write;
  void write(Bytes bytes, std::span<const int> descriptors, bool notice) override;
  [[nodiscard]] std::size_t queued_bytes() const override { return queued_bytes_; }
  [[nodiscard]] std::size_t queued_notice_bytes() const override { return queued_notice_bytes_; }
  void accept_descriptors() override {}
  support::Descriptor take_descriptor() override;
  [[nodiscard]] std::size_t descriptors_waiting() const override { return 0; }
  [[nodiscard]] PeerUser peer_user() const override { return PeerUser::own; }
  void drop() override;
  void finish(std::chrono::nanoseconds limit) override;
  /// There is no socket: the descriptor is empty.
  support::Descriptor release() override;
  [[nodiscard]] bool is_local() const override { return false; }
  [[nodiscard]] std::string own_host() const override;
  [[nodiscard]] std::string peer_host() const override;

  // --- for the wire ---
  [[nodiscard]] bool reading() const { return reading_; }
  void received(std::span<const std::byte> bytes);
  void ended(const std::string& why);
  void connected();
  void has_drained();
  /// Takes up to `limit` bytes off the queue.
  Bytes take(std::size_t limit);
  [[nodiscard]] bool may_send() const { return connected_; }

 private:
  struct Chunk {
    Bytes bytes;
    std::size_t sent = 0;
    bool notice = false;
  };
  void close(bool reset);

  Network& network_;
  std::shared_ptr<Wire> wire_;  // owners: both ends, and events under way
  int end_;
  Stream::Events events_;
  bool reading_ = false;
  bool open_ = true;
  bool connected_ = false;
  bool finishing_ = false;
  std::deque<Chunk> queue_;
  std::size_t queued_bytes_ = 0;
  std::size_t queued_notice_bytes_ = 0;
  std::shared_ptr<SimulatedStream> until_flushed_;  // itself, while finishing
};

class SimulatedListener final : public Listener {
 public:
  SimulatedListener(Network& network, Process& process, SocketAddress address, Sockets::Incoming incoming);
  ~SimulatedListener() override;
  SimulatedListener(const SimulatedListener&) = delete;
  SimulatedListener& operator=(const SimulatedListener&) = delete;
  [[nodiscard]] const SocketAddress& address() const override { return address_; }
  [[nodiscard]] Process& process() { return process_; }
  void accept(const std::shared_ptr<Wire>& wire);

 private:
  Network& network_;
  Process& process_;
  SocketAddress address_;
  Sockets::Incoming incoming_;
};

}  // namespace shardwire::simulation
