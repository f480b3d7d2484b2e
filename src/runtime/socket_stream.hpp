// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/stream.hpp"
#include "runtime/uv_handle.hpp"
#include "runtime/uv_loop.hpp"
#include "support/descriptors.hpp"
#include "support/fork.hpp"

namespace shardwire {

/// A stream socket, to another host or within one.
class SocketStream final : public Stream, public std::enable_shared_from_this<SocketStream> {
 public:
  static std::shared_ptr<SocketStream> connect(UvLoop& loop, const SocketAddress& to, Events events);
  static std::shared_ptr<SocketStream> connect_local(UvLoop& loop, const std::string& name, Events events);
  static std::shared_ptr<SocketStream> adopt(UvLoop& loop, support::Descriptor socket, Events events);
  ~SocketStream() override;
  SocketStream(const SocketStream&) = delete;
  SocketStream& operator=(const SocketStream&) = delete;

  void start_reading() override;
  void stop_reading() override;
  using Stream::write;
  void write(Bytes bytes, std::span<const int> descriptors, bool notice) override;
  [[nodiscard]] std::size_t queued_bytes() const override { return queued_bytes_; }
  [[nodiscard]] std::size_t untaken_bytes() const override;
  [[nodiscard]] std::size_t queued_notice_bytes() const override { return queued_notice_bytes_; }
  void accept_descriptors() override { accepts_descriptors_ = true; }
  support::Descriptor take_descriptor() override;
  [[nodiscard]] std::size_t descriptors_waiting() const override { return descriptors_.size(); }
  void drop() override;
  void finish(std::chrono::nanoseconds limit) override;
  support::Descriptor release() override;
  [[nodiscard]] bool is_local() const override { return local_; }
  [[nodiscard]] PeerUser peer_user() const override;
  [[nodiscard]] std::string own_host() const override;
  [[nodiscard]] std::string peer_host() const override;

 private:
  struct Chunk {
    Bytes bytes;
    std::vector<support::Descriptor> descriptors;
    bool notice = false;
  };

  SocketStream(UvLoop& loop, support::Descriptor socket, Events events);
  void set_options() const;
  void begin_connecting(const sockaddr_storage& address, unsigned length);
  void watch();
  void ready(int status, int events);
  void read_some();
  struct Arrived {
    std::size_t bytes = 0;
    int status = 0;  // of libuv; 0 without bytes: nothing has arrived yet
  };
  [[nodiscard]] Arrived receive(std::span<std::byte> into) const;
  Arrived receive_local(std::span<std::byte> into);
  [[nodiscard]] ssize_t send(std::span<struct iovec> ranges) const;
  [[nodiscard]] ssize_t send_first() const;
  void flush();
  void notify_drained();
  void discard_queue();
  void end(const std::string& why);
  void finished();
  void forget_input() const;

  UvLoop& loop_;
  support::Descriptor socket_;
  Events events_;
  bool local_ = false;
  bool accepts_descriptors_ = false;
  bool connecting_ = false;
  int refusals_ = 0;  // of a local listener whose queue is full
  bool reading_ = false;
  bool broken_ = false;     // for writing
  bool finishing_ = false;  // drops itself once the queue is empty
  std::deque<Chunk> queue_;
  std::size_t sent_of_first_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t queued_notice_bytes_ = 0;
  bool passed_ = false;  // whether bytes were sent since `drained` last ran
  std::deque<support::Descriptor> descriptors_;
  int watched_ = 0;  // events that poll_ waits for
  HandleOwner<uv_poll_t> poll_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
  Timer later_;                                  // reports the findings of a call
  std::shared_ptr<SocketStream> until_flushed_;  // owner while finishing
};

}  // namespace shardwire
