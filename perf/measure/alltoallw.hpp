// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <vector>

#include "perf/measure/setup.hpp"
#include "perf/measure/state_memory.hpp"

namespace shardwire::perf {

/// One restore as a single MPI_Alltoallw: a struct of subarrays for each pair of processes.
class Alltoallw {
 public:
  /// `me` is the rank in MPI_COMM_WORLD, which has as many processes as the setup has members.
  /// Errors: throws std::runtime_error for boxes that no subarray can describe.
  Alltoallw(const Setup& setup, const Case& job, int me, const StateMemory& held, const StateMemory& wanted);
  ~Alltoallw();
  Alltoallw(const Alltoallw&) = delete;
  Alltoallw& operator=(const Alltoallw&) = delete;

  void run(const std::byte* held, std::byte* wanted) const;

 private:
  /// One per peer.
  struct Side {
    std::vector<int> counts;
    std::vector<int> displacements;
    std::vector<MPI_Datatype> types;
  };
  static void free_types(Side& side);

  Side out_;
  Side in_;
};

/// Errors: throws std::runtime_error with the operation and MPI's message.
void check_mpi(int code, const char* operation);

}  // namespace shardwire::perf
