// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "shardwire/error.hpp"
#include "shardwire/tensor.hpp"

// C++ enumerators in the order of their ordinals in the schema: reordering an enum in C++ cannot change the wire
// format.
namespace shardwire::wire {

inline constexpr std::array wire_errors{
    ErrorCode::invalid_argument, ErrorCode::layout_mismatch, ErrorCode::unsupported,   ErrorCode::out_of_resources,
    ErrorCode::peer_lost,        ErrorCode::timed_out,       ErrorCode::cancelled,     ErrorCode::transport_failed,
    ErrorCode::internal,         ErrorCode::withdrawn,       ErrorCode::step_mismatch, ErrorCode::corrupt};

/// Number of `dtype` in messages. Errors: throws Error{invalid_argument} for a number that is no type.
inline std::uint32_t number_of(DType dtype) {
  (void)item_size(dtype);
  return static_cast<std::uint32_t>(dtype);
}

/// Ordinal of `value`. Errors: throws Error{invalid_argument} for a number that is no enumerator.
template <typename WireEnum, typename Enum, std::size_t Count>
WireEnum to_wire(const std::array<Enum, Count>& table, Enum value) {
  const auto found = std::find(table.begin(), table.end(), value);
  if (found == table.end()) throw Error(ErrorCode::invalid_argument, "value outside of its enumeration");
  return static_cast<WireEnum>(found - table.begin());
}

}  // namespace shardwire::wire
