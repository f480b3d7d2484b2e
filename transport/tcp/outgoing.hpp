// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <optional>

#include "transport/tcp/frame.hpp"
#include "transport/tcp/ranges.hpp"

// The send queue to one peer: it decides which message is next, and which part of it the next frame carries.
namespace shardwire::transport::tcp {

struct OutgoingMessage {
  std::uint64_t number = 0;
  Bytes header;
  Ranges payload;
  Completion done;
  RangeCursor next{};      ///< the first byte that is in no frame
  std::size_t frames = 0;  ///< frames not yet written
};

/// A frame being written to one stream.
struct OutgoingFrame {
  std::array<std::byte, max_head_bytes> head{};
  std::size_t head_bytes = 0;
  std::size_t head_written = 0;
  std::list<OutgoingMessage>::iterator message{};  ///< if there is one
  bool of_message = false;
  RangeCursor cursor{};  ///< the next byte to write
  ByteCount end = 0;     ///< end of the frame's part of the payload

  [[nodiscard]] ByteCount left() const { return head_bytes - head_written + (end - cursor.offset); }
};
OutgoingFrame hello_frame(std::uint64_t fabric, std::size_t stream, std::size_t streams);

class Outgoing {
 public:
  explicit Outgoing(std::size_t streams) : streams_(streams) {}
  void post(ByteView header, std::span<const ConstMemory> payload, Completion done);
  /// The next frame for a stream that has room.
  std::optional<OutgoingFrame> next(bool first_stream);
  [[nodiscard]] bool has_next(bool first_stream) const { return !open_.empty() || (first_stream && !waiting_.empty()); }
  /// The kernel has accepted the whole frame. Returns the completion of a message that this ends.
  std::optional<Completion> written(const OutgoingFrame& frame);
  [[nodiscard]] bool empty() const { return waiting_.empty() && open_.empty() && assigned_.empty(); }
  /// Drops all completions: no caller waits for them.
  void forget_completions();
  /// Removes all messages and returns their completions. Frames of these messages must not be used any more.
  std::vector<Completion> clear();

 private:
  OutgoingFrame announce();
  OutgoingFrame take_chunk();

  std::size_t streams_;
  std::uint64_t next_number_ = 0;
  // A message moves from list to list; frames keep pointing to it.
  std::list<OutgoingMessage> waiting_;   // not announced
  std::list<OutgoingMessage> open_;      // has bytes that are in no frame; the front has its turn
  std::list<OutgoingMessage> assigned_;  // waits until its frames are written
  ByteCount announced_bytes_ = 0;        // on the first stream since its last chunk
  ByteCount turn_bytes_ = 0;             // of the front of open_ since its turn began
};

}  // namespace shardwire::transport::tcp
