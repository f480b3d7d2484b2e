// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "shardwire/types.hpp"
#include "support/function_ref.hpp"

namespace shardwire::memory::cuda {

enum class Direction : std::uint8_t { inside, to_host, from_host };

/// Run lengths from which the copy engine copies instead of the kernel. The defaults hold where nothing was measured;
/// for copies over the bus they favour the engine, since each load of a kernel waits for the bus.
struct EngineLimits {
  static constexpr ByteCount never = std::numeric_limits<ByteCount>::max();

  ByteCount inside = 1u << 20;  ///< within one device
  ByteCount to_host = 4u << 10;
  ByteCount from_host = 4u << 10;

  [[nodiscard]] ByteCount of(Direction direction) const;
  ByteCount& of(Direction direction);
  bool operator==(const EngineLimits&) const = default;
};

/// Size of a trial copy; its runs are twice their length apart at the source and contiguous at the target.
inline constexpr ByteCount trial_bytes = 1u << 20;

/// Duration of a trial, by the engine or by the kernel.
using TimeTrial = support::FunctionRef<double(Direction direction, ByteCount run_bytes, bool by_engine)>;

/// Measures both, from long runs to short ones while the engine is faster. Trials that would begin after some
/// milliseconds are skipped, and their defaults remain.
EngineLimits measure_engine_limits(TimeTrial seconds_of);

}  // namespace shardwire::memory::cuda
