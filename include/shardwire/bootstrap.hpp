// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "shardwire/export.hpp"
#include "shardwire/key_value_store.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Where a process stands in its job and where the job's rendezvous is.
struct Bootstrap {
  int rank = 0;        ///< member number, 0..world_size-1; not a rank of a layout
  int world_size = 1;  ///< members expected
  /// Joins beside the members: it restores and publishes like them, and nobody waits for it. It takes no part in gather()
  /// and exchange(). `rank` is ignored: member 0 assigns a number from world_size on. world_size may be 0: taken from
  /// member 0.
  bool guest = false;
  int local_size = 0;  ///< members on this host; 0: not known
  /// Host of member 0, which serves the rendezvous: a name or a number. Session::join() looks up a name that is not known
  /// yet until the join timeout, and logs a warning after 2 s. One look blocks for as long as the system's resolver takes.
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  ///< rendezvous port on that host; 0, with a store only: a port chosen by the system
  /// Network interface or local address for control connections. Empty: the interface that reaches `address`. Member 0
  /// listens on `address` in any case.
  std::string interface {};
  /// Shared secret of the job's members. Empty: with a store, member 0 draws one and puts it there, so the job is protected as
  /// well as the store is; without a store, members admit only processes of their own user on their own host.
  Bytes job_key{};
  /// A job without key and store admits any process that reaches it: all can join, read and publish. Also set by
  /// SHARDWIRE_ALLOW_OPEN_NETWORK=1.
  bool allow_open_network = false;
  /// Name of the job, at most 256 characters. Members of different jobs that meet on one port refuse each other by it.
  /// Empty: taken from the environment, see bootstrap_from_env().
  std::string run_id{};
  /// Publishes the addresses of member 0, in place of `address`, and a job key if none is given. Member 0 then listens on
  /// `interface`. If that is empty, it listens on loopback if local_size says that all members are on this host, else on
  /// every address that other hosts may reach. The other members try these addresses in turn until the join timeout. A
  /// refusal does not stop them, because the refusing process may belong to another job. They look for newer addresses
  /// every second. Owners: this value, its copies, and the session until it is destroyed.
  std::shared_ptr<KeyValueStore> store{};
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as torchrun sets them), or the rank and size that Open MPI,
/// MPICH, Slurm or a PMIx launcher export. Without MASTER_ADDR, processes started with PMIx (mpirun, prterun, srun
/// --mpi=pmix) use their launcher's key-value store as `store`; other processes must all be on one host, by their
/// launcher's count. SHARDWIRE_INTERFACE and SHARDWIRE_JOB_KEY_FILE fill the fields of those names. Does not wait for
/// other members.
/// Run id: SHARDWIRE_RUN_ID, else TORCHELASTIC_RUN_ID unless that is "none", else SLURM_JOB_ID (with the step where
/// srun
///         started the members, and the namespace where mpirun did), else PMIX_NAMESPACE.
/// PMIx:   the first need loads libpmix and calls PMIx_Init(). PMIx_Finalize() follows when the process exits, because
///         MPI_Init() fails after an earlier PMIx_Finalize(). The application may use MPI before, meanwhile and later.
/// Port:   SHARDWIRE_PORT; else 0 with PMIx; else MASTER_PORT + 1, since torchrun's own store listens on MASTER_PORT;
///         else a port from 20000 to 32767 derived from the run id, so that two jobs on one host do not collide; else
///         29501.
/// Threads: any; no thread may change the environment meanwhile.
/// Errors: throws Error{invalid_argument} naming a variable that is missing, malformed or in conflict with PMIx;
///         Error{transport_failed} if the launcher's PMIx server does not answer, since each process would otherwise
///         start a job of one.
Bootstrap bootstrap_from_env();

/// For members that know their numbers and share a store. Takes run id, interface, job key and SHARDWIRE_PORT from the
/// environment as above, and local_size if the launcher started `world_size` members. Calls no function of the store.
/// Threads: as bootstrap_from_env().
/// Errors: throws Error{invalid_argument} without a store, and naming a malformed variable.
Bootstrap bootstrap_from_store(std::shared_ptr<KeyValueStore> store, int rank, int world_size);

/// Number of processes by the launcher's variables; empty if no launcher set any, or if it leaves the number to PMIx.
/// Errors: throws Error{invalid_argument} naming a malformed variable.
std::optional<int> world_size_from_env();

}  // namespace shardwire
SHARDWIRE_API_END
