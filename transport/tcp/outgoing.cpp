// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/outgoing.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shardwire::transport::tcp {
namespace {

// Maximum payload of one frame: other messages wait for no longer than that on a stream.
constexpr ByteCount chunk_bytes = 1u << 20;
// If there are several streams, a longer payload is left to any stream with room.
constexpr ByteCount max_inline_bytes = 64u << 10;
// A message is sent for that many bytes before the next message's turn. Messages of a request's size thus end one after
// the other, so that the receiver can process one while the next arrives.
constexpr ByteCount turn_limit_bytes = 4u << 20;
// Messages that are announced and not completely in frames.
constexpr std::size_t max_open = 8;

void set_head(OutgoingFrame& out, const Frame& frame, ByteView header) {
  std::memcpy(out.head.data(), &frame, sizeof frame);
  std::copy(header.begin(), header.end(), out.head.begin() + sizeof frame);
  out.head_bytes = sizeof frame + header.size();
}

/// Assigns the message's next bytes to a frame.
void assign(OutgoingFrame& out, std::list<OutgoingMessage>::iterator message, ByteCount bytes) {
  out.message = message;
  out.of_message = true;
  out.cursor = message->next;
  out.end = message->next.offset + bytes;
  message->payload.advance(message->next, bytes);
  ++message->frames;
}

}  // namespace

OutgoingFrame hello_frame(std::uint64_t fabric, std::size_t stream, std::size_t streams) {
  Frame frame = make_frame(FrameKind::hello);
  frame.number = fabric;
  frame.offset = stream;
  frame.payload_bytes = streams;
  OutgoingFrame out;
  set_head(out, frame, {});
  return out;
}

void Outgoing::post(ByteView header, std::span<const ConstMemory> payload, Completion done) {
  waiting_.push_back({.number = next_number_++,
                      .header = Bytes(header.begin(), header.end()),
                      .payload = Ranges(payload),
                      .done = std::move(done)});
}

std::optional<OutgoingFrame> Outgoing::next(bool first_stream) {
  const bool may_announce = first_stream && !waiting_.empty() && open_.size() < max_open;
  // Short messages in sequence must not delay a long one, nor the reverse.
  if (may_announce && (open_.empty() || announced_bytes_ < chunk_bytes)) return announce();
  if (first_stream) announced_bytes_ = 0;
  if (open_.empty()) return std::nullopt;
  return take_chunk();
}

OutgoingFrame Outgoing::announce() {
  const auto message = waiting_.begin();
  const ByteCount payload = message->payload.bytes();
  const bool with_bytes = streams_ == 1 || payload <= max_inline_bytes;
  Frame frame = make_frame(FrameKind::message);
  frame.header_bytes = static_cast<std::uint16_t>(message->header.size());
  frame.number = message->number;
  frame.bytes = with_bytes ? std::min(payload, chunk_bytes) : 0;
  frame.payload_bytes = payload;
  OutgoingFrame out;
  set_head(out, frame, message->header);
  assign(out, message, frame.bytes);
  announced_bytes_ += out.left();
  auto& list = frame.bytes == payload ? assigned_ : open_;
  list.splice(list.end(), waiting_, message);
  return out;
}

OutgoingFrame Outgoing::take_chunk() {
  const auto message = open_.begin();
  const ByteCount payload = message->payload.bytes();
  Frame frame = make_frame(FrameKind::chunk);
  frame.number = message->number;
  frame.offset = message->next.offset;
  frame.bytes = std::min(payload - message->next.offset, chunk_bytes);
  OutgoingFrame out;
  set_head(out, frame, {});
  assign(out, message, frame.bytes);
  turn_bytes_ += frame.bytes;
  const bool all = message->next.offset == payload;
  if (all) assigned_.splice(assigned_.end(), open_, message);
  if (all || turn_bytes_ >= turn_limit_bytes) {
    if (!all) open_.splice(open_.end(), open_, message);
    turn_bytes_ = 0;
  }
  return out;
}

std::optional<Completion> Outgoing::written(const OutgoingFrame& frame) {
  if (!frame.of_message) return std::nullopt;
  OutgoingMessage& message = *frame.message;
  if (--message.frames > 0 || message.next.offset < message.payload.bytes()) return std::nullopt;
  Completion done = std::move(message.done);
  assigned_.erase(frame.message);
  return done;
}

void Outgoing::forget_completions() {
  for (auto* list : {&waiting_, &open_, &assigned_}) {
    for (OutgoingMessage& message : *list) message.done = nullptr;
  }
}

std::vector<Completion> Outgoing::clear() {
  std::vector<Completion> all;
  for (auto* list : {&assigned_, &open_, &waiting_}) {
    for (OutgoingMessage& message : *list) all.push_back(std::move(message.done));
    list->clear();
  }
  return all;
}

}  // namespace shardwire::transport::tcp
