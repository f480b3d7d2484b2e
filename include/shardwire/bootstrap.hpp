// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "shardwire/export.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Where a process stands in its job and where the job's rendezvous is.
struct Bootstrap {
  int rank = 0;                       ///< member number, 0..world_size-1; not a rank of a layout
  int world_size = 1;                 ///< members expected
  int local_size = 0;                 ///< of them on this host; 0: not known
  std::string address = "127.0.0.1";  ///< host of member 0, which serves the rendezvous
  std::uint16_t port = 0;             ///< rendezvous port there
  /// Network interface or local address for control connections. Empty: the one that reaches `address`; member 0 listens
  /// there in any case.
  std::string interface {};
  Bytes job_key{};  ///< shared secret of the job's members; empty: the job is told apart, not protected
  /// Name of the job, at most 256 characters. Members of two jobs that meet on one port refuse each other by it. Empty: that
  /// of the environment, see bootstrap_from_env().
  std::string run_id{};
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as torchrun sets them), or the rank and size that Open MPI, MPICH and
/// Slurm export. Without MASTER_ADDR all members have to be on one host, as the launcher says.
/// SHARDWIRE_INTERFACE and SHARDWIRE_JOB_KEY_FILE fill the fields of those names.
/// Run id: SHARDWIRE_RUN_ID, else TORCHELASTIC_RUN_ID unless that is "none", else SLURM_JOB_ID (with the step where srun
///         started the members, and the namespace where mpirun did), else PMIX_NAMESPACE.
/// Port:   SHARDWIRE_PORT, else MASTER_PORT + 1, since torchrun's own store listens on MASTER_PORT; else one from 20000 to
///         32767 that the run id gives, so that two jobs of one host do not meet; 29501 where there is no run id either.
/// Errors: throws Error{invalid_argument} naming the variable that is missing or malformed.
Bootstrap bootstrap_from_env();

}  // namespace shardwire
SHARDWIRE_API_END
