// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "runtime/addresses.hpp"
#include "runtime/peer_user.hpp"
#include "shardwire/error.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"

namespace shardwire {

/// Bytes in order to another process and from it; streams within a host carry descriptors too.
/// Threads: loop thread only. Callbacks run in later loop iterations, never inside a call; they may drop the stream.
class Stream {
 public:
  struct Events {
    /// The connection is established. Only for connect() and connect_local().
    std::function<void()> connected;
    std::function<void(std::span<const std::byte>)> data;
    /// Connecting has failed, or no more data arrives. `why`: for people. Later writes are discarded.
    std::function<void(const std::string& why)> ended;
    std::function<void()> drained;  ///< the queue has shrunk
  };

  virtual ~Stream() = default;

  virtual void start_reading() = 0;
  virtual void stop_reading() = 0;
  /// Queues the bytes; `descriptors` go with the first of them, and only within a host. Duplicates are kept until then.
  /// `notice`: counted separately, see queued_notice_bytes().
  /// Errors: throws Error{out_of_resources} if there is no descriptor for a duplicate.
  virtual void write(Bytes bytes, std::span<const int> descriptors, bool notice) = 0;
  void write(Bytes bytes) { write(std::move(bytes), {}, false); }
  /// Bytes that have not left yet.
  [[nodiscard]] virtual std::size_t queued_bytes() const = 0;
  /// Bytes that have left, and that the peer's system has not taken. 0 where nobody can tell.
  [[nodiscard]] virtual std::size_t untaken_bytes() const { return 0; }
  /// Notices among the queued bytes.
  [[nodiscard]] virtual std::size_t queued_notice_bytes() const = 0;
  /// Accepts descriptors from here on. A peer that sends some before, or more than max_descriptors that are not taken,
  /// breaks the protocol, and the stream ends.
  virtual void accept_descriptors() = 0;
  /// The oldest descriptor that has arrived.
  virtual support::Descriptor take_descriptor() = 0;
  [[nodiscard]] virtual std::size_t descriptors_waiting() const = 0;
  static constexpr std::size_t max_descriptors = 256;

  /// Stops all callbacks. Queued bytes are not sent.
  virtual void drop() = 0;
  /// As drop(), but sends queued bytes first, for at most `limit`; discards incoming data meanwhile.
  virtual void finish(std::chrono::nanoseconds limit) = 0;
  /// Hands over the socket; this stream is dropped. Requires: nothing is queued, and all received data was delivered.
  virtual support::Descriptor release() = 0;

  /// Within this host, and then to a process of this user.
  [[nodiscard]] virtual bool is_local() const = 0;
  /// By the kernel's word. Requires: something has come from the peer.
  [[nodiscard]] virtual PeerUser peer_user() const = 0;
  /// Addresses of the two ends; empty if there is none. For a local peer: its process.
  [[nodiscard]] virtual std::string own_host() const = 0;
  [[nodiscard]] virtual std::string peer_host() const = 0;
};

/// Opens an accepted stream with these events. Call it at most once, and only during Sockets::Incoming; a stream that is
/// not opened is closed afterwards. Errors: throws Error{out_of_resources}.
using AcceptedStream = std::function<std::shared_ptr<Stream>(Stream::Events)>;

/// Accepts streams at one address for as long as it lives.
/// Threads: loop thread only.
class Listener {
 public:
  virtual ~Listener() = default;
  /// Requires: it listens at a network address, not at a local name.
  [[nodiscard]] virtual const SocketAddress& address() const = 0;
};

/// Another process listens at the address.
class PortTaken : public Error {
 public:
  using Error::Error;
};

/// Connects this process to others. `UvLoop` is the real one; simulations supply their own.
class Sockets {
 public:
  using Incoming = std::function<void(const AcceptedStream&)>;

  /// Errors: throws Error{out_of_resources}, Error{invalid_argument} for an invalid address.
  virtual std::shared_ptr<Stream> connect(const SocketAddress& to, Stream::Events events) = 0;
  /// Connects to a name within this host, on which a process of this user listens.
  virtual std::shared_ptr<Stream> connect_local(const std::string& name, Stream::Events events) = 0;
  /// `port` 0: any free one. Errors: throws PortTaken, Error{invalid_argument} if the address is not of this host.
  virtual std::unique_ptr<Listener> listen(const SocketAddress& at, Incoming incoming) = 0;
  /// Listens on a name, for processes of this user on this host only. Errors: throws PortTaken, Error{out_of_resources}.
  virtual std::unique_ptr<Listener> listen_local(const std::string& name, Incoming incoming) = 0;
  /// Name of the network interface of this host that has this address; empty if there is none.
  [[nodiscard]] virtual std::string interface_of(const std::string& address) const = 0;

 protected:
  ~Sockets() = default;
};

}  // namespace shardwire
