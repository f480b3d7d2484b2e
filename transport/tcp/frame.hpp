// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "transport/transport.hpp"

// A stream consists of frames: each is a record of 40 bytes, a message's header, and a part of a payload. Each
// direction of a connection numbers its streams and its messages independently.
namespace shardwire::transport::tcp {

inline constexpr std::uint32_t protocol_version = 1;
inline constexpr int max_streams = 16;
/// Larger than any memory; the sum of two such values does not overflow.
inline constexpr ByteCount max_payload_bytes = ByteCount{1} << 60;

enum class FrameKind : std::uint16_t {
  hello = 1,    ///< the first frame of each stream, and only there
  message = 2,  ///< on the first stream, in message order; followed by the header, then the first payload bytes
  chunk = 3,    ///< further bytes of a payload, on any stream
};

/// Both ends run on the same kind of machine (the session compares versions first), so a frame is its own encoding.
struct Frame {
  std::uint32_t magic = 0;
  FrameKind kind{};
  std::uint16_t header_bytes = 0;   ///< message: length of its header
  std::uint64_t number = 0;         ///< hello: id of the sending fabric; else the message number, counted from 0
  std::uint64_t offset = 0;         ///< hello: stream number, counted from 0; chunk: offset in the payload
  std::uint64_t bytes = 0;          ///< payload bytes that follow
  std::uint64_t payload_bytes = 0;  ///< hello: number of streams; message: size of its payload
};
static_assert(sizeof(Frame) == 40);
/// A frame and its header.
inline constexpr std::size_t max_head_bytes = sizeof(Frame) + max_header_bytes;

Frame make_frame(FrameKind kind);
/// Length of the header that follows; 0 if none is allowed, so that the reader does not wait for one after an invalid
/// frame.
std::size_t header_bytes_of(const Frame& frame);
/// The defect of a frame by itself, for people; empty if none. `first`: the first frame of a stream.
std::string defect_of(const Frame& frame, bool first);

}  // namespace shardwire::transport::tcp
