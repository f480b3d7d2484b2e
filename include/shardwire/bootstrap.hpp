// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "shardwire/types.hpp"

namespace shardwire {

/// Where a process stands in its job and where the job's rendezvous is.
struct Bootstrap {
  int rank = 0;                       ///< member number, 0..world_size-1; not a place in a layout
  int world_size = 1;                 ///< members expected
  int local_size = 0;                 ///< of them on this host; 0: not known
  std::string address = "127.0.0.1";  ///< host of member 0, which serves the rendezvous
  std::uint16_t port = 0;             ///< rendezvous port there
  std::string interface {
  };  ///< network interface or local address for control connections; empty: the one that reaches `address`
  Bytes job_key{};  ///< shared secret of the job's members; empty: the job is told apart, not protected
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as torchrun sets them), or the rank and size that Open MPI, MPICH and
/// Slurm export. The rendezvous port is SHARDWIRE_PORT, else MASTER_PORT + 1 since torchrun's own store listens on
/// MASTER_PORT. SHARDWIRE_INTERFACE and SHARDWIRE_JOB_KEY_FILE fill the fields of those names.
/// Errors: throws Error{invalid_argument} naming the variable that is missing or malformed.
Bootstrap bootstrap_from_env();

}  // namespace shardwire
