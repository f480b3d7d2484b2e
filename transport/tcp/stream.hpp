// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "transport/tcp/incoming.hpp"
#include "transport/tcp/outgoing.hpp"
#include "transport/tcp/wire.hpp"

namespace shardwire::transport::tcp {

class Connection;

/// One socket, converted to and from frames. The connection interprets the frames.
///
/// Edge-triggered (EPOLLET): the stream remembers whether there is something to read, or room to write, until the
/// kernel reports otherwise. So a stream that is not read for a while causes no useless wake-ups.
class Stream {
 public:
  Stream(Connection& connection, OpenSocket socket, std::size_t number);
  ~Stream() { close(); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] int descriptor() const { return wire_.descriptor(); }
  [[nodiscard]] Connection& connection() const { return connection_; }
  /// Records the events that epoll reported.
  void note(std::uint32_t events);

  [[nodiscard]] bool can_read() const;
  [[nodiscard]] bool can_write(const Outgoing& outgoing) const;
  /// Each moves about `at_most` bytes and returns whether it moved any. Runs the handlers of messages, after which the
  /// connection may be closed.
  bool read(ByteCount at_most);
  bool write(Outgoing& outgoing, ByteCount at_most);
  /// Drops arrived data unread. False: no more will arrive.
  bool drop_input();

  void enqueue(OutgoingFrame frame) { outbox_.push_back(std::move(frame)); }
  /// Drops the frames of abandoned messages.
  void forget_output() { outbox_.clear(); }
  /// From here on, nothing is written into any caller's memory.
  void forget_input() { payload_ = {}; }
  [[nodiscard]] bool has_output() const { return !outbox_.empty() || wire_.holds_output(); }
  /// The last frame read no longer has to wait for other streams.
  void unblock() { blocked_ = false; }
  /// No more data will arrive.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool is_first() const { return number_ == 0; }
  void close();

  /// The peer's number of this stream, after its hello.
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
  /// Evaluates the result of a read call; 0: no data now, or no more data ever.
  std::size_t read_result(ssize_t result, std::size_t asked);
  void collect(Outgoing& outgoing);
  void gather(ByteCount at_most, IoVectors& from);
  void count_written(std::size_t bytes);
  /// A call of the wire has failed.
  void note_write_error();

  Connection& connection_;
  Wire wire_;
  std::size_t number_;
  bool readable_ = false;
  bool writable_ = true;  // a write call reports when it is not
  bool hung_up_ = false;
  bool blocked_ = false;
  bool ended_ = false;

  // Heads of frames, together with short payloads or the beginnings of longer ones.
  std::array<std::byte, 4096> inbox_;
  std::size_t inbox_begin_ = 0;
  std::size_t inbox_end_ = 0;
  Payload payload_;
  ByteCount charged_ = 0;  // against the budget of the current read call

  std::deque<OutgoingFrame> outbox_;
};

}  // namespace shardwire::transport::tcp
