// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "session/loop.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// What this member says of itself on every connection.
struct Identity {
  wire::Hello hello;  ///< nonce left empty: each connection draws its own
  Bytes job_key;
};

struct SocketAddress {
  std::string host;  ///< numeric
  std::uint16_t port = 0;
};

/// One control connection: frames of [64-bit length, message], a handshake in which both sides prove the job key, then any
/// messages. The end of the stream is how the death of the peer shows.
/// Threads: loop thread only.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Events {
    std::function<void(Connection&)> ready;  ///< both sides have proven the key
    std::function<void(Connection&, wire::Message&)> message;
    /// Called once, last. `orderly`: the peer said goodbye first.
    std::function<void(Connection&, const Error& reason, bool orderly)> closed;
  };

  static std::shared_ptr<Connection> connect(Loop& loop, const SocketAddress& to, const Identity& identity,
                                             Events events);
  /// Takes one waiting connection from `listener`.
  static std::shared_ptr<Connection> accept(Loop& loop, uv_stream_t* listener, const Identity& identity, Events events);
  ~Connection();

  void send(const wire::Message& message);
  /// The same for a message that is encoded already, because it goes to many.
  void send_encoded(const Bytes& encoded);
  /// Says goodbye, flushes and closes; no further events.
  void leave();
  /// Closes without a word; `closed` does not run.
  void drop();

  [[nodiscard]] bool ready() const { return state_ == State::open; }
  [[nodiscard]] const wire::Hello& peer() const { return peer_; }
  [[nodiscard]] std::uint64_t id() const { return id_; }
  /// Address of this end. Requires: connected.
  [[nodiscard]] std::string local_host() const;

 private:
  enum class State : std::uint8_t { connecting, greeting, proving, open, closed };

  Connection(Loop& loop, const Identity& identity, Events events, bool initiator);
  void connected();
  void read(ssize_t count, const uv_buf_t* buffer);
  void take_frames();
  void take(std::span<const std::byte> frame);
  void take_hello(const wire::Message& message);
  void take_proof(const wire::Message& message);
  void write(const wire::Message& message);
  void write_frame(const Bytes& encoded);
  void fail(const Error& reason);
  void close_stream();

  std::uint64_t id_;
  const bool initiator_;
  State state_ = State::connecting;
  wire::Hello mine_;
  wire::Hello peer_;
  Bytes job_key_;
  Events events_;
  bool goodbye_ = false;
  Bytes inbox_;            // bytes not yet taken as frames
  std::size_t taken_ = 0;  // of inbox_
  Timer handshake_timer_;
  HandleOwner<uv_tcp_t> stream_;
};

/// Accepts control connections on one address.
class Listener {
 public:
  /// `port` 0: any free one. Errors: throws Error{invalid_argument} when the port is taken or the address is not ours.
  Listener(Loop& loop, const SocketAddress& at, std::function<void(uv_stream_t*)> incoming);
  [[nodiscard]] const SocketAddress& address() const { return address_; }

 private:
  SocketAddress address_;
  std::function<void(uv_stream_t*)> incoming_;
  HandleOwner<uv_tcp_t> stream_;
};

/// Numeric form of a host name or of the address of a network interface. Blocking. Errors: throws Error{invalid_argument}.
std::string resolve(const std::string& host);
std::string interface_address(const std::string& interface_or_address);

}  // namespace shardwire
