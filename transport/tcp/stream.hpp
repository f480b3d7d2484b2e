// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "support/fork.hpp"
#include "transport/tcp/incoming.hpp"
#include "transport/tcp/outgoing.hpp"

namespace shardwire::transport::tcp {

class Connection;

/// One socket: frames go in, frames come out. What they mean is the connection's.
///
/// Watched for edges (EPOLLET): whether there is something to read, or room to write, is remembered here until the kernel
/// says otherwise. So a stream that is not read for a while makes nobody look at it in vain.
class Stream {
 public:
  Stream(Connection& connection, support::Descriptor socket, std::size_t number);
  ~Stream() { close(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] int descriptor() const { return socket_.get(); }
  [[nodiscard]] Connection& connection() const { return connection_; }
  /// What epoll says.
  void note(std::uint32_t events);

  [[nodiscard]] bool can_read() const;
  [[nodiscard]] bool can_write(const Outgoing& outgoing) const;
  /// Each moves about as many bytes as it may at once, and returns whether it moved any. Runs the handler of messages, after
  /// which the connection may be closed.
  bool read(ByteCount at_most);
  bool write(Outgoing& outgoing, ByteCount at_most);
  /// Drops what has come, as it is. False: no more will.
  bool drop_input();

  void enqueue(OutgoingFrame frame) { outbox_.push_back(std::move(frame)); }
  /// Of messages that are given up.
  void forget_output() { outbox_.clear(); }
  /// Likewise: from here on nothing is written into anybody's memory.
  void forget_input() { payload_ = {}; }
  [[nodiscard]] bool has_output() const { return !outbox_.empty(); }
  /// The frame that was read last has to wait for other streams, or does not any more.
  void unblock() { blocked_ = false; }
  /// Nothing more comes.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool is_first() const { return number_ == 0; }
  void close();

  /// The peer's number of this stream, once it has said hello.
  std::optional<std::size_t> peer_number;

 private:
  struct Payload {
    std::uint64_t number = 0;
    IncomingMessage* message = nullptr;  // null: none is being read
    RangeCursor cursor{};
    ByteCount end = 0;
    [[nodiscard]] ByteCount left() const { return end - cursor.offset; }
  };

  [[nodiscard]] std::size_t buffered() const { return inbox_end_ - inbox_begin_; }
  [[nodiscard]] std::size_t head_bytes() const;
  [[nodiscard]] bool has_head() const { return buffered() >= sizeof(Frame) && buffered() >= head_bytes(); }
  bool fill_inbox();
  bool take_frame();
  bool read_payload(ByteCount at_most);
  std::size_t take_buffered_payload();
  void count_payload(ByteCount bytes);
  /// Of a call that reads; 0: nothing is there, or nothing more comes.
  std::size_t read_result(ssize_t result, std::size_t asked);
  void collect(Outgoing& outgoing);
  void gather(ByteCount at_most, IoVectors& from);
  void count_written(std::size_t bytes);

  Connection& connection_;
  support::Descriptor socket_;
  std::optional<support::ClosedOnFork> closed_on_fork_;
  std::size_t number_;
  bool readable_ = false;
  bool writable_ = true;  // a call will say when not
  bool hung_up_ = false;
  bool blocked_ = false;
  bool ended_ = false;

  // Heads of frames, and what short payloads or beginnings of longer ones come with them.
  std::array<std::byte, 4096> inbox_;
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
  Payload payload_;
  ByteCount charged_ = 0;  // against the budget of the call that reads

  std::deque<OutgoingFrame> outbox_;
};

}  // namespace shardwire::transport::tcp
