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
  int local_size = 0;  ///< of them on this host; 0: not known
  /// Host of member 0, which serves the rendezvous: a name or a number. A name is looked up once, by Session::join(), for as long
  /// as the system's resolver takes; one that is not known is Error{invalid_argument}, without waiting.
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;  ///< rendezvous port there; with a store also 0: one that the system gives
  /// Network interface or local address for control connections. Empty: the one that reaches `address`; member 0 listens
  /// there in any case.
  std::string interface {};
  Bytes job_key{};  ///< shared secret of the job's members; empty: the job is told apart, not protected
  /// Name of the job, at most 256 characters. Members of two jobs that meet on one port refuse each other by it. Empty: that
  /// of the environment, see bootstrap_from_env().
  std::string run_id{};
  /// Tells the others where member 0 is, in place of `address`. Member 0 then listens on `interface`; if that is empty, on
  /// loopback where local_size says that all are on this host, else on every address that other hosts may reach. The others
  /// try these in turn, again and again, also where somebody refuses them: it may be another job's. Until their time to join is
  /// over they look for newer ones every second.
  /// Owners: this, its copies, and the session until it is destroyed.
  std::shared_ptr<KeyValueStore> store{};
};

/// Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (as torchrun sets them), or the rank and size that Open MPI, MPICH,
/// Slurm or a PMIx launcher export. Without MASTER_ADDR, processes started with PMIx (mpirun, prterun, srun --mpi=pmix) get a
/// `store` that is their launcher's; others have to be on one host, as the launcher says.
/// SHARDWIRE_INTERFACE and SHARDWIRE_JOB_KEY_FILE fill the fields of those names.
/// Waits for no other member.
/// Run id: SHARDWIRE_RUN_ID, else TORCHELASTIC_RUN_ID unless that is "none", else SLURM_JOB_ID (with the step where srun
///         started the members, and the namespace where mpirun did), else PMIX_NAMESPACE.
/// PMIx:   libpmix is loaded, and PMIx_Init() called, the first time that it is needed; PMIx_Finalize() follows when the
///         process exits, since no MPI_Init() would succeed after an earlier one. The application may use MPI before,
///         meanwhile and later.
/// Port:   SHARDWIRE_PORT; else 0 with PMIx; else MASTER_PORT + 1, since torchrun's own store listens on MASTER_PORT; else
///         one from 20000 to 32767 that the run id gives, so that two jobs of one host do not meet; 29501 where there is no
///         run id either.
/// Threads: any; no thread may change the environment meanwhile.
/// Errors: throws Error{invalid_argument} naming the variable that is missing or malformed, or at odds with what PMIx says;
///         Error{transport_failed} when the launcher's PMIx server does not answer: these processes would else take
///         themselves for jobs of one.
Bootstrap bootstrap_from_env();

/// For members that know their numbers and share a store. Run id, interface, job key and SHARDWIRE_PORT are taken from the
/// environment as above, and local_size where a launcher has started as many members. Calls nothing of the store.
/// Threads: as bootstrap_from_env().
/// Errors: throws Error{invalid_argument} without a store, and naming the variable that is malformed.
Bootstrap bootstrap_from_store(std::shared_ptr<KeyValueStore> store, int rank, int world_size);

/// How many processes the launcher's variables speak of; empty where they are of no launcher, or leave it to PMIx.
/// Errors: throws Error{invalid_argument} naming the variable that is malformed.
std::optional<int> world_size_from_env();

}  // namespace shardwire
SHARDWIRE_API_END
