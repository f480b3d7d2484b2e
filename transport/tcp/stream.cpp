// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "transport/tcp/connection.hpp"

namespace shardwire::transport::tcp {
namespace {

// Charge per frame in addition to its bytes, so that the turns of many empty messages are bounded too.
constexpr ByteCount frame_charge = 1024;
// A stream takes more frames only while fewer bytes than this wait in it: the rest is left to streams with room.
constexpr ByteCount outbox_low_bytes = 128u << 10;
constexpr ByteCount max_call_bytes = 1u << 20;

std::string reason(int error) {
  if (error == EBADMSG) return "what has come over an encrypted connection is not what the peer has sent";
  return std::generic_category().message(error);
}

}  // namespace

Stream::Stream(Connection& connection, OpenSocket socket, std::size_t number)
    : connection_(connection), wire_(std::move(socket)), number_(number) {
}

void Stream::close() {
  if (!wire_) return;
  connection_.engine().unwatch(*this);
  wire_.close();
  ended_ = true;
  outbox_.clear();
  payload_ = {};
  inbox_begin_ = inbox_end_ = 0;
}

void Stream::note(std::uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable_ = true;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) hung_up_ = true;
}

// --- reading ---

bool Stream::can_read() const {
  if (ended_ || blocked_) return false;
  return readable_ || (payload_.message != nullptr ? buffered() > 0 : has_head());
}

std::size_t Stream::head_bytes() const {
  Frame frame;
  std::memcpy(&frame, inbox_.data() + inbox_begin_, sizeof frame);
  return sizeof frame + header_bytes_of(frame);
}

std::size_t Stream::read_result(ssize_t result, std::size_t asked) {
  if (result > 0) {
    const auto bytes = static_cast<std::size_t>(result);
    // The socket is then empty, and the next byte raises an edge. If the peer has hung up, the end is still to be read.
    if (wire_.is_drained(bytes, asked) && !hung_up_) readable_ = false;
    return bytes;
  }
  const int error = errno;
  if (result < 0 && error == EINTR) return 0;
  readable_ = false;
  if (result < 0 && (error == EAGAIN || error == EWOULDBLOCK)) return 0;
  ended_ = true;
  connection_.end_stream(result == 0 ? "the peer has closed the connection" : reason(error));
  return 0;
}

bool Stream::fill_inbox() {
  if (inbox_begin_ > 0) {
    std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, buffered());
    inbox_end_ = buffered();
    inbox_begin_ = 0;
  }
  const std::size_t room = inbox_.size() - inbox_end_;
  IoVectors into;
  into.add(inbox_.data() + inbox_end_, room);
  const std::size_t bytes = read_result(wire_.receive(into), room);
  inbox_end_ += bytes;
  return bytes > 0;
}

bool Stream::read(ByteCount at_most) {
  bool moved = false;
  charged_ = 0;
  while (!ended_ && !blocked_ && charged_ < at_most) {
    if (payload_.message != nullptr) {
      if (!read_payload(at_most - charged_)) break;
    } else if (has_head()) {
      if (!take_frame()) break;
      charged_ += frame_charge;
    } else if (!readable_ || !fill_inbox()) {
      break;
    }
    moved = true;
  }
  return moved;
}

bool Stream::take_frame() {
  Frame frame;
  std::memcpy(&frame, inbox_.data() + inbox_begin_, sizeof frame);
  Connection::Target target;
  switch (connection_.take(*this, frame, target)) {
    case Connection::Intake::closed: return false;
    case Connection::Intake::blocked: blocked_ = true; return false;
    case Connection::Intake::taken: break;
  }
  const std::size_t head = head_bytes();
  std::array<std::byte, max_header_bytes> header;
  const std::size_t header_bytes = head - sizeof frame;
  std::copy_n(inbox_.begin() + static_cast<std::ptrdiff_t>(inbox_begin_ + sizeof frame), header_bytes, header.begin());
  inbox_begin_ += head;
  // The state is consistent before the handler runs, because it may throw.
  if (target.bytes > 0) {
    payload_ = {.number = target.number, .message = target.message, .end = target.offset + target.bytes};
    payload_.cursor =
        target.message->discarded ? RangeCursor{0, target.offset} : target.message->into.at(target.offset);
  }
  if (frame.kind == FrameKind::message) connection_.handle(frame, ByteView(header).first(header_bytes));
  return true;
}

bool Stream::read_payload(ByteCount at_most) {
  if (const std::size_t bytes = take_buffered_payload(); bytes > 0) {
    count_payload(bytes);
    return true;
  }
  if (!readable_) return false;
  IoVectors into;
  const ByteCount wanted = std::min(payload_.left(), at_most);
  ByteCount asked = 0;
  if (payload_.message->discarded) {
    const auto scratch = connection_.engine().scratch();
    asked = std::min<ByteCount>(wanted, scratch.size());
    into.add(scratch.data(), asked);
  } else {
    asked = payload_.message->into.fill(payload_.cursor, payload_.cursor.offset + wanted, into);
  }
  // The head of the next frame often arrives with the end of this one.
  const bool to_the_end = asked == payload_.left() && into.room() > 0;
  if (to_the_end) {
    inbox_begin_ = inbox_end_ = 0;
    into.add(inbox_.data(), inbox_.size());
  }
  const std::size_t bytes = read_result(wire_.receive(into), into.bytes());
  if (bytes == 0) return false;
  if (bytes > asked) inbox_end_ = bytes - asked;
  count_payload(std::min<ByteCount>(bytes, asked));
  return true;
}

std::size_t Stream::take_buffered_payload() {
  const std::size_t bytes = std::min<std::size_t>(buffered(), payload_.left());
  if (bytes == 0) return 0;
  if (!payload_.message->discarded) {
    payload_.message->into.write(payload_.cursor, ByteView(inbox_).subspan(inbox_begin_, bytes));
  }
  inbox_begin_ += bytes;
  return bytes;
}

void Stream::count_payload(ByteCount bytes) {
  charged_ += bytes;
  if (payload_.message->discarded) {
    payload_.cursor.offset += bytes;
  } else {
    payload_.message->into.advance(payload_.cursor, bytes);
  }
  const std::uint64_t number = payload_.number;
  if (payload_.left() == 0) payload_ = {};
  connection_.arrived(number, bytes);
}

bool Stream::drop_input() {
  const auto scratch = connection_.engine().scratch();
  for (std::size_t calls = 0; calls < 16; ++calls) {
    IoVectors into;
    into.add(scratch.data(), scratch.size());
    const ssize_t result = wire_.receive(into);
    if (result > 0) continue;
    if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    return false;
  }
  return true;
}

// --- writing ---

bool Stream::can_write(const Outgoing& outgoing) const {
  return writable_ && wire_ && (has_output() || outgoing.has_next(is_first()));
}

void Stream::collect(Outgoing& outgoing) {
  ByteCount waiting = 0;
  for (const OutgoingFrame& frame : outbox_) waiting += frame.left();
  while (waiting < outbox_low_bytes) {
    auto frame = outgoing.next(is_first());
    if (!frame) break;
    waiting += frame->left();
    outbox_.push_back(std::move(*frame));
  }
}

void Stream::gather(ByteCount at_most, IoVectors& from) {
  for (const OutgoingFrame& frame : outbox_) {
    if (from.room() < 2 || from.bytes() >= at_most) return;
    if (const std::size_t left = frame.head_bytes - frame.head_written; left > 0) {
      from.add(const_cast<std::byte*>(frame.head.data()) + frame.head_written, left);
    }
    const ByteCount left = frame.end - frame.cursor.offset;
    if (left == 0) continue;
    const ByteCount part = std::min(left, at_most - std::min(at_most, from.bytes()));
    if (frame.message->payload.fill(frame.cursor, frame.cursor.offset + part, from) < left) return;
  }
}

bool Stream::write(Outgoing& outgoing, ByteCount at_most) {
  bool moved = false;
  for (ByteCount written = 0; writable_ && written < at_most;) {
    collect(outgoing);
    if (outbox_.empty()) {
      if (wire_.holds_output() && wire_.flush() < 0) note_write_error();
      break;
    }
    IoVectors from;
    gather(std::min(max_call_bytes, at_most - written), from);
    const ssize_t result = wire_.send(from);
    if (result < 0) {
      note_write_error();
      break;
    }
    const auto bytes = static_cast<std::size_t>(result);
    if (wire_.is_full(bytes, from.bytes())) writable_ = false;  // the kernel raises an edge when there is room again
    count_written(bytes);
    written += bytes;
    moved = true;
  }
  return moved;
}

void Stream::note_write_error() {
  const int error = errno;
  if (error == EINTR) return;
  writable_ = false;
  if (error != EAGAIN && error != EWOULDBLOCK) connection_.end_stream(reason(error));
}

void Stream::count_written(std::size_t bytes) {
  while (!outbox_.empty()) {
    OutgoingFrame& frame = outbox_.front();
    const std::size_t head = std::min(bytes, frame.head_bytes - frame.head_written);
    frame.head_written += head;
    bytes -= head;
    const ByteCount part = std::min<ByteCount>(bytes, frame.end - frame.cursor.offset);
    if (part > 0) frame.message->payload.advance(frame.cursor, part);
    bytes -= part;
    if (frame.left() > 0) return;
    connection_.written(frame);
    outbox_.pop_front();
  }
}

}  // namespace shardwire::transport::tcp
