// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "transport/transport.hpp"

// What travels on a stream: frames, each a record of 40 bytes, a message's header, and a part of a payload.
// Each direction of a connection numbers its streams and its messages by itself.
namespace shardwire::transport::tcp {

inline constexpr std::uint32_t protocol_version = 1;
inline constexpr int max_streams = 16;
/// More than any memory; sums of two of them do not overflow.
inline constexpr ByteCount max_payload_bytes = ByteCount{1} << 60;

enum class FrameKind : std::uint16_t {
  hello = 1,  ///< the first of each stream, and nowhere else
  message =
      2,  ///< on the first stream, in the order of their numbers; the header follows, then the payload's first bytes
  chunk = 3,  ///< further bytes of a payload, on any stream
};

/// Both ends run on the same kind of machine (the session compares versions first), so this is its own encoding.
struct Frame {
  std::uint32_t magic = 0;
  FrameKind kind{};
  std::uint16_t header_bytes = 0;   ///< message: of its header
  std::uint64_t number = 0;         ///< hello: the sending fabric; else the message, counted from 0
  std::uint64_t offset = 0;         ///< hello: the stream, counted from 0; chunk: where it belongs in the payload
  std::uint64_t bytes = 0;          ///< of payload that follow
  std::uint64_t payload_bytes = 0;  ///< hello: how many streams there are; message: all of its payload
};
static_assert(sizeof(Frame) == 40);
/// A frame and its header.
inline constexpr std::size_t max_head_bytes = sizeof(Frame) + max_header_bytes;

Frame make_frame(FrameKind kind);
/// Of the header that follows; 0 where none may follow, so that what is no frame is not waited for.
std::size_t header_bytes_of(const Frame& frame);
/// What is wrong with a frame as such, for people; empty when nothing is. `first` is said of the first frame of a stream.
std::string defect_of(const Frame& frame, bool first);

}  // namespace shardwire::transport::tcp
