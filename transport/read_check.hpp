// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "transport/transport.hpp"

// What every fabric asks of a list of reads before it posts it.
namespace shardwire::transport {

/// The region as the fabric has imported it. Errors: throws Error{invalid_argument} for one of another fabric.
template <typename Remote>
const Remote& own_region(const RemoteRegion& region) {
  const auto* remote = dynamic_cast<const Remote*>(&region);
  if (remote == nullptr) throw Error(ErrorCode::invalid_argument, "read() from a region of another fabric");
  return *remote;
}

/// Errors: throws Error{invalid_argument} for too many, and for one that is not inside of the region.
inline void check_ranges(std::span<const ReadRange> ranges, std::size_t max_ranges, ByteCount region_bytes) {
  if (ranges.size() > max_ranges) throw Error(ErrorCode::invalid_argument, "read() of too many ranges");
  for (const ReadRange& range : ranges) {
    if (range.offset_bytes > region_bytes || range.into.bytes > region_bytes - range.offset_bytes) {
      throw Error(ErrorCode::invalid_argument, "read() past the end of a region");
    }
  }
}

/// How a read ends whose targets could not be registered. One that hears "cancelled" looks for another way: that it reads into
/// memory of a device was promised before there was any.
inline Fault fault_of_target(const Error& error) {
  const bool other_way = error.code() == ErrorCode::unsupported;  // host memory has none
  return {other_way ? ErrorCode::cancelled : error.code(), error.what()};
}

}  // namespace shardwire::transport
