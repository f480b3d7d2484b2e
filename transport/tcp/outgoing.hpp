// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>
#include <optional>

#include "transport/tcp/frame.hpp"
#include "transport/tcp/ranges.hpp"

// What is sent to one peer: which message has its turn, and which part of it goes into the next frame.
namespace shardwire::transport::tcp {

struct OutgoingMessage {
  std::uint64_t number = 0;
  Bytes header;
  Ranges payload;
  Completion done;
  RangeCursor next{};      ///< what no frame has yet
  std::size_t frames = 0;  ///< that are not written
};

/// On its way into one stream.
struct OutgoingFrame {
  std::array<std::byte, max_head_bytes> head{};
  std::size_t head_bytes = 0;
  std::size_t head_written = 0;
  std::list<OutgoingMessage>::iterator message{};  ///< where there is one
  bool of_message = false;
  RangeCursor cursor{};  ///< what is to be written next
  ByteCount end = 0;     ///< of its part of the payload

  [[nodiscard]] ByteCount left() const { return head_bytes - head_written + (end - cursor.offset); }
};
OutgoingFrame hello_frame(std::uint64_t fabric, std::size_t stream, std::size_t streams);

class Outgoing {
 public:
  explicit Outgoing(std::size_t streams) : streams_(streams) {}
  void post(ByteView header, std::span<const ConstMemory> payload, Completion done);
  /// What a stream that has room writes next.
  std::optional<OutgoingFrame> next(bool first_stream);
  [[nodiscard]] bool has_next(bool first_stream) const { return !open_.empty() || (first_stream && !waiting_.empty()); }
  /// All of a frame is the kernel's. Returns the completion of a message that has ended by that.
  std::optional<Completion> written(const OutgoingFrame& frame);
  [[nodiscard]] bool empty() const { return waiting_.empty() && open_.empty() && assigned_.empty(); }
  /// From here on completions are of no use to anybody.
  void forget_completions();
  /// Of all messages that have not ended, which are forgotten: no frame of theirs may be used any more.
  std::vector<Completion> clear();

 private:
  OutgoingFrame announce();
  OutgoingFrame take_chunk();

  std::size_t streams_;
  std::uint64_t next_number_ = 0;
  // A message moves from list to list; frames keep pointing to it.
  std::list<OutgoingMessage> waiting_;   // not announced
  std::list<OutgoingMessage> open_;      // have bytes that are in no frame; the front has its turn
  std::list<OutgoingMessage> assigned_;  // wait for their frames to be written
  ByteCount announced_bytes_ = 0;        // on the first stream since its last chunk
  ByteCount turn_bytes_ = 0;             // of the front of open_ since its turn began
};

}  // namespace shardwire::transport::tcp
