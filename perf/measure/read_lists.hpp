// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "perf/measure/read_loop.hpp"
#include "perf/measure/setup.hpp"
#include "perf/measure/state_memory.hpp"

namespace shardwire::perf {

/// What one target rank reads in a restore: exactly the runs that are contiguous on both sides, in the order of its schedule.
struct ReadOrder {
  struct Copy {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Copy> copies;                                 ///< of what its own process holds
  std::map<int, std::vector<ReadList::Range>> from_member;  ///< the rest; offsets in that member's held memory

  [[nodiscard]] std::uint64_t reads() const;
};

/// Empty where `member` is no target rank. `held`, `wanted`: of this member, with memory to lie in.
/// Errors: throws Error{layout_mismatch} where a region has no holder.
ReadOrder read_order_of(const Setup& setup, const Case& job, int member, const StateMemory& held,
                        const StateMemory& wanted);

}  // namespace shardwire::perf
