// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "shardwire/types.hpp"
#include "support/function_ref.hpp"

namespace shardwire::memory::cuda {

enum class Direction : std::uint8_t { inside, to_host, from_host };

/// From which run lengths on the copy engine makes a copy, and not the kernel. As they are here where nobody has measured; of copies
/// over the bus the engine is given most, since each load of a kernel waits for it.
struct EngineLimits {
  static constexpr ByteCount never = std::numeric_limits<ByteCount>::max();

  ByteCount inside = 1u << 20;  ///< of one device
  ByteCount to_host = 4u << 10;
  ByteCount from_host = 4u << 10;

  [[nodiscard]] ByteCount of(Direction direction) const;
  ByteCount& of(Direction direction);
  bool operator==(const EngineLimits&) const = default;
};

/// A trial copies so much, in runs that lie twice their length apart at the source and side by side at the target.
inline constexpr ByteCount trial_bytes = 1u << 20;

/// How long a trial takes, by the engine or by the kernel.
using TimeTrial = support::FunctionRef<double(Direction direction, ByteCount run_bytes, bool by_engine)>;

/// Measures both, from long runs to short ones as long as the engine is faster. What would begin after some milliseconds of trials is
/// left as it is.
EngineLimits measure_engine_limits(TimeTrial seconds_of);

}  // namespace shardwire::memory::cuda
