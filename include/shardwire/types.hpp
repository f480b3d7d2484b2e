// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwire/export.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Number of a process in a job-wide layout, counted from 0. The old and the new layout both have ranks; the object
/// that carries a Rank defines its side.
enum class Rank : std::int32_t {};

constexpr std::int32_t to_int(Rank rank) {
  return static_cast<std::int32_t>(rank);
}

/// Index of a tensor in the list of one manifest (see plan.hpp). Meaningless outside that list.
enum class TensorId : std::uint32_t {};

constexpr std::uint32_t to_index(TensorId id) {
  return static_cast<std::uint32_t>(id);
}

/// Extents, offsets and volumes are signed 64-bit element counts; memory sizes are unsigned 64-bit byte counts. They
/// are aliases, not classes, because sums of them are formed everywhere; products go through a checked multiply.
using Extent = std::int64_t;
using ElementCount = std::int64_t;
using ByteCount = std::uint64_t;

using Bytes = std::vector<std::byte>;

}  // namespace shardwire
SHARDWIRE_API_END
