// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/frame.hpp"

#include <fmt/core.h>

namespace shardwire::transport::tcp {
namespace {

constexpr std::uint32_t frame_magic = 0x73770000u + protocol_version;

std::string defect_of_hello(const Frame& frame) {
  if (frame.header_bytes != 0 || frame.bytes != 0) return "a hello with something behind it";
  if (frame.payload_bytes == 0 || frame.payload_bytes > std::uint64_t{max_streams}) {
    return fmt::format("{} streams, where 1 to {} are possible", frame.payload_bytes, max_streams);
  }
  if (frame.offset >= frame.payload_bytes) {
    return fmt::format("stream {} of {}", frame.offset, frame.payload_bytes);
  }
  return {};
}

std::string defect_of_message(const Frame& frame) {
  if (frame.header_bytes > max_header_bytes) return fmt::format("a header of {} bytes", frame.header_bytes);
  if (frame.payload_bytes > max_payload_bytes) return fmt::format("a payload of {} bytes", frame.payload_bytes);
  if (frame.offset != 0 || frame.bytes > frame.payload_bytes) return "a message with more bytes than it has";
  return {};
}

std::string defect_of_chunk(const Frame& frame) {
  if (frame.header_bytes != 0 || frame.payload_bytes != 0) return "a chunk with a header";
  if (frame.bytes == 0 || frame.bytes > max_payload_bytes || frame.offset > max_payload_bytes) {
    return fmt::format("a chunk of {} bytes at {}", frame.bytes, frame.offset);
  }
  return {};
}

}  // namespace

Frame make_frame(FrameKind kind) {
  return {.magic = frame_magic, .kind = kind};
}

std::size_t header_bytes_of(const Frame& frame) {
  const bool has = frame.magic == frame_magic && frame.kind == FrameKind::message;
  return has && frame.header_bytes <= max_header_bytes ? frame.header_bytes : 0;
}

std::string defect_of(const Frame& frame, bool first) {
  if (frame.magic != frame_magic) return "something that is no frame of this version";
  if (first != (frame.kind == FrameKind::hello)) return first ? "no hello" : "a second hello";
  switch (frame.kind) {
    case FrameKind::hello: return defect_of_hello(frame);
    case FrameKind::message: return defect_of_message(frame);
    case FrameKind::chunk: return defect_of_chunk(frame);
  }
  return "a frame of an unknown kind";
}

}  // namespace shardwire::transport::tcp
