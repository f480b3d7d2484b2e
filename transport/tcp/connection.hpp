// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/tcp/engine.hpp"
#include "transport/tcp/stream.hpp"

namespace shardwire::transport::tcp {

/// All streams to one peer. Owners: its endpoint, and the engine while it is open.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Requires: prepared sockets.
  Connection(Engine& engine, std::vector<OpenSocket> sockets, std::uint64_t own_fabric, std::uint64_t peer_fabric);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  /// Registers the streams with the engine.
  void open();

  void send(ByteView header, std::span<const ConstMemory> payload, Completion done);
  /// Ends all operations at once, with a fault.
  void abort();
  /// Flushes sent data until that time. Completions of sends never run afterwards.
  void close(WallClock::time_point until);

  [[nodiscard]] bool failed() const { return state_ != State::open; }
  [[nodiscard]] bool is_closed() const { return state_ == State::closed; }
  [[nodiscard]] bool endpoint_is_gone() const { return endpoint_gone_; }
  [[nodiscard]] std::size_t stream_count() const { return streams_.size(); }
  [[nodiscard]] const std::string& carrier() const { return carrier_; }
  [[nodiscard]] bool on_host() const { return on_host_; }
  [[nodiscard]] bool encrypted() const { return encrypted_; }

  // Called by the engine.
  bool progress();
  [[nodiscard]] bool has_work() const;
  /// After the peer has ended a stream: when the grace period of the other streams is over.
  [[nodiscard]] WallClock::time_point grace_ends_at() const { return grace_ends_at_; }
  void end_grace();
  bool queued = false;  ///< in the engine's list of connections with work

  // Called by streams.
  Engine& engine() { return engine_; }
  enum class Intake : std::uint8_t { taken, blocked, closed };
  /// A complete head has arrived: of a message to be handled, or of bytes that `target` places.
  struct Target {
    std::uint64_t number = 0;
    IncomingMessage* message = nullptr;
    ByteCount offset = 0;
    ByteCount bytes = 0;
  };
  Intake take(Stream& stream, const Frame& frame, Target& target);
  /// Runs the handler. The connection may be closed when this returns or throws.
  void handle(const Frame& frame, ByteView header);
  void arrived(std::uint64_t number, ByteCount bytes);
  void written(const OutgoingFrame& frame);
  /// The peer or the kernel has ended a stream. Data left in the other streams is still read.
  void end_stream(const std::string& why);

  // Called by a message inside its handler.
  void receive(std::uint64_t number, ByteCount payload_bytes, std::span<const Memory> into, Completion done);

 private:
  enum class State : std::uint8_t {
    open,
    ending,  // sends nothing any more; arrived data is read
    closed,
  };
  Intake take_hello(Stream& stream, const Frame& frame);
  Intake take_message(Stream& stream, const Frame& frame, Target& target);
  Intake take_chunk(Stream& stream, const Frame& frame, Target& target);
  Intake refuse(const std::string& what);
  void unblock_streams();
  void fail_sends(const Fault& fault);
  void fail_receives(const Fault& fault);
  void close_streams(bool reset);
  bool flush(WallClock::time_point until);

  Engine& engine_;
  std::string carrier_;
  bool on_host_ = false;
  bool encrypted_ = false;
  std::uint64_t peer_fabric_;
  State state_ = State::open;
  bool endpoint_gone_ = false;
  Fault fault_;  // of operations posted after the connection was closed
  WallClock::time_point grace_ends_at_{};
  std::vector<std::unique_ptr<Stream>> streams_;
  Outgoing outgoing_;
  IncomingMessages incoming_;
};

}  // namespace shardwire::transport::tcp
