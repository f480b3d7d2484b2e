// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/transport.hpp"

// Checks that every fabric makes before it posts a list of reads.
namespace shardwire::transport {

/// The region as the fabric imported it. Errors: throws Error{invalid_argument} for a region of another fabric.
template <typename Remote>
const Remote& own_region(const RemoteRegion& region) {
  const auto* remote = dynamic_cast<const Remote*>(&region);
  if (remote == nullptr) throw Error(ErrorCode::invalid_argument, "read() from a region of another fabric");
  return *remote;
}

/// Errors: throws Error{invalid_argument} for too many ranges, or for a range outside the region.
inline void check_ranges(std::span<const ReadRange> ranges, std::size_t max_ranges, ByteCount region_bytes) {
  if (ranges.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "read() of too many ranges");
  for (const ReadRange& range : ranges) {
    if (range.offset_bytes > region_bytes || range.into.bytes > region_bytes - range.offset_bytes) {
      throw Error(ErrorCode::invalid_argument, "read() past the end of a region");
    }
  }
}

/// The fault of a read whose targets could not be registered. A caller that receives `cancelled` tries another path:
/// the path promised reads into device memory before any such memory existed.
inline Fault fault_of_target(const Error& error) {
  const bool other_way = error.code() == ErrorCode::unsupported;  // host memory has no other path
  return {other_way ? ErrorCode::cancelled : error.code(), error.what()};
}

}  // namespace shardwire::transport
