// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>

#include "perf/measure/read_loop.hpp"
#include "perf/measure/setup.hpp"
#include "perf/measure/state_memory.hpp"

namespace shardwire::perf {

/// The reads of one target rank in a restore: exactly the runs that are contiguous on both sides, in the order of its
/// schedule.
struct ReadOrder {
  struct Copy {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Copy> copies;                                 ///< of data that its own process holds
  std::map<int, std::vector<ReadList::Range>> from_member;  ///< the rest; offsets in that member's held memory

  [[nodiscard]] std::uint64_t reads() const;
};

/// Empty if `member` is not a target rank. `held`, `wanted`: of this member, with their memory set.
/// Errors: throws Error{layout_mismatch} if a region has no holder.
ReadOrder read_order_of(const Setup& setup, const Case& job, int member, const StateMemory& held,
                        const StateMemory& wanted);

}  // namespace shardwire::perf
