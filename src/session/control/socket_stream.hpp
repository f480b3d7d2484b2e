// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "session/control/addresses.hpp"
#include "session/control/loop.hpp"
#include "shardwire/types.hpp"
#include "support/descriptors.hpp"
#include "support/fork.hpp"

namespace shardwire {

/// A stream socket on the loop, to another host or within one; the latter carries descriptors too.
/// Threads: loop thread only. Callbacks run on later turns of the loop, never inside a call; they may drop the stream.
class SocketStream : public std::enable_shared_from_this<SocketStream> {
 public:
  struct Events {
    /// A status of libuv: 0 when it is connected. Only for streams that connect.
    std::function<void(int status)> connected;
    std::function<void(std::span<const std::byte>)> data;
    /// Nothing more comes: UV_EOF, or what went wrong. What is written from here on goes nowhere.
    std::function<void(int status)> ended;
    std::function<void()> drained;  ///< less is queued than before
  };

  /// Errors: throws Error{out_of_resources}, Error{invalid_argument} for an address that is none.
  static std::shared_ptr<SocketStream> connect(Loop& loop, const SocketAddress& to, Events events);
  /// To a name in this network namespace (unix(7), abstract), without the leading zero byte.
  static std::shared_ptr<SocketStream> connect_local(Loop& loop, const std::string& name, Events events);
  static std::shared_ptr<SocketStream> adopt(Loop& loop, support::Descriptor socket, Events events);
  ~SocketStream();
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  void start_reading();
  void stop_reading();
  /// Queues the bytes; `descriptors` go with the first of them, and only within a host. Duplicates of them are kept until then.
  /// `notice`: counted apart, see queued_notice_bytes().
  void write(Bytes bytes, std::span<const int> descriptors = {}, bool notice = false);
  /// What the kernel has not taken yet.
  [[nodiscard]] std::size_t queued_bytes() const { return queued_bytes_; }
  /// Of what is queued.
  [[nodiscard]] std::size_t queued_notice_bytes() const { return queued_notice_bytes_; }
  /// Takes descriptors from here on; a peer that sends some before, or more than max_descriptors that nobody has taken, is
  /// at fault, and the stream ends.
  void accept_descriptors() { accepts_descriptors_ = true; }
  /// Those that have come, oldest first.
  support::Descriptor take_descriptor();
  [[nodiscard]] std::size_t descriptors_waiting() const { return descriptors_.size(); }
  static constexpr std::size_t max_descriptors = 256;

  /// No callback runs any more. What is queued is not sent.
  void drop();
  /// The same, but what is queued is sent first, for at most `limit`; what comes meanwhile is forgotten.
  void finish(std::chrono::nanoseconds limit);
  /// The socket, to be used by somebody else; this stream is dropped. Requires: nothing is queued, and all that has come was
  /// handed out.
  support::Descriptor release();

  [[nodiscard]] bool is_local() const { return local_; }
  /// Borrowed, for options of the socket.
  [[nodiscard]] int descriptor() const { return socket_.get(); }
  /// Addresses of the two ends; empty where the socket has none.
  [[nodiscard]] std::string own_host() const;
  [[nodiscard]] std::string peer_host() const;

 private:
  struct Chunk {
    Bytes bytes;
    std::vector<support::Descriptor> descriptors;
    bool notice = false;
  };

  SocketStream(Loop& loop, support::Descriptor socket, Events events);
  void begin_connecting(const void* address, unsigned length);
  void watch();
  void ready(int status, int events);
  void read_some();
  struct Arrived {
    std::size_t bytes = 0;
    int status = 0;  // of libuv; 0 with no bytes: there is nothing yet
  };
  [[nodiscard]] Arrived receive(std::span<std::byte> into) const;
  Arrived receive_local(std::span<std::byte> into);
  [[nodiscard]] ssize_t send(std::span<struct iovec> ranges) const;
  [[nodiscard]] ssize_t send_first() const;
  void flush();
  void tell_drained();
  void discard_queue();
  void end(int status);
  void finished();
  void forget_input() const;

  Loop& loop_;
  support::Descriptor socket_;
  Events events_;
  bool local_ = false;
  bool accepts_descriptors_ = false;
  bool connecting_ = false;
  bool reading_ = false;
  bool broken_ = false;     // for writing
  bool finishing_ = false;  // drops itself once the queue is empty
  std::deque<Chunk> queue_;
  std::size_t sent_of_first_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t queued_notice_bytes_ = 0;
  bool passed_ = false;  // something, since `drained` ran last
  std::deque<support::Descriptor> descriptors_;
  int watched_ = 0;  // events that poll_ waits for
  HandleOwner<uv_poll_t> poll_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
  Timer later_;                                  // reports what a call has found
  std::shared_ptr<SocketStream> until_flushed_;  // owner while finishing
};

}  // namespace shardwire
