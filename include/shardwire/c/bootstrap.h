// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/error.h"

SHARDWIRE_C_BEGIN

/// Where a process stands in its job and where the job's rendezvous is.
typedef struct shardwire_bootstrap_fields {
  size_t size;
  uint32_t version;
  int32_t rank;           ///< member number, 0..world_size-1; not a rank of a layout
  int32_t world_size;     ///< members expected; default 1
  int32_t local_size;     ///< members on this host; 0: not known
  const char* address;    ///< host of member 0: a name or a number; default "127.0.0.1"
  const char* interface;  ///< network interface or local address for control connections; "": the one that fits
  const void* job_key;  ///< shared secret of the job's members, `job_key_bytes` long; NULL: none, or one from the store
  size_t job_key_bytes;
  const char* run_id;  ///< name of the job, at most 256 characters; "": taken from the environment
  uint16_t port;       ///< of the rendezvous; 0, with a store only: a port chosen by the system
  /** Without key and store, any process that reaches the job may join it, as with SHARDWIRE_ALLOW_OPEN_NETWORK=1. Default
      false: only processes of the same user on the same host. */
  bool allow_open_network;
  /** Joins beside the members, and takes no part in gathers and exchanges. `rank` is ignored, world_size may be 0. Default
      false. */
  bool guest;
} shardwire_bootstrap_fields;
void shardwire_bootstrap_fields_init(shardwire_bootstrap_fields* fields, size_t size);

/// An answer of a store, for the duration of one call of `get`.
typedef struct shardwire_store_answer shardwire_store_answer;
/// Called by `get` with the value it found; the library copies it.
shardwire_code shardwire_store_answer_set(shardwire_store_answer* answer, const void* value, size_t value_bytes,
                                          shardwire_error** error);

/// A key-value store of the caller's that all members reach, such as torch's TCPStore or etcd. Member 0 puts its
/// addresses there, and the others get them. Without a `job_key` the value holds one that member 0 has drawn: the store and
/// its logs then need the protection that the job needs.
/// Threads:   only shardwire_session_join() calls `put` and `get`, on its caller's thread.
/// Deadline:  no call may take much longer than its timeout.
/// Ownership: the library calls `release(context)` once, when the last bootstrap and session that use the store are
///            freed, on the thread that frees it. If the call that takes the store fails, it does not.
/// Errors:    a result other than 0 ends the join with TRANSPORT_FAILED.
typedef struct shardwire_store {
  size_t size;
  uint32_t version;
  void* context;
  /** Replaces any existing value. Called by member 0 with the rest of its join timeout. Required. */
  int (*put)(void* context, const char* key, const void* value, size_t value_bytes, int64_t timeout_ns);
  /** Gives the newest value to `answer` as soon as there is one, and nothing if there is none in time. Required. */
  int (*get)(void* context, const char* key, int64_t timeout_ns, shardwire_store_answer* answer);
  void (*release)(void* context); /**< may be NULL */
} shardwire_store;
void shardwire_store_init(shardwire_store* store, size_t size);

/// Describes a job to join.
/// Threads: use a handle from one thread at a time.
typedef struct shardwire_bootstrap shardwire_bootstrap;
void shardwire_bootstrap_free(shardwire_bootstrap* bootstrap);
shardwire_code shardwire_bootstrap_create(const shardwire_bootstrap_fields* fields, shardwire_bootstrap** bootstrap,
                                          shardwire_error** error);
/// Reads the variables of torchrun, Open MPI, MPICH, Slurm or a PMIx launcher, and SHARDWIRE_PORT, SHARDWIRE_INTERFACE,
/// SHARDWIRE_RUN_ID and SHARDWIRE_JOB_KEY_FILE. Does not wait for other members. No thread may change the environment
/// meanwhile.
/// Errors: INVALID_ARGUMENT naming a variable that is missing or malformed; TRANSPORT_FAILED if the
///         launcher's PMIx server does not answer.
shardwire_code shardwire_bootstrap_from_env(shardwire_bootstrap** bootstrap, shardwire_error** error);
/// For members that know their numbers and share a store. Takes run id, interface, job key and SHARDWIRE_PORT from the
/// environment.
shardwire_code shardwire_bootstrap_from_store(const shardwire_store* store, int32_t rank, int32_t world_size,
                                              shardwire_bootstrap** bootstrap, shardwire_error** error);
/// Reads the fields of a bootstrap, to look at them or to change some.
shardwire_code shardwire_bootstrap_read(const shardwire_bootstrap* bootstrap, shardwire_bootstrap_fields* fields,
                                        shardwire_error** error);
/// Replaces the fields and keeps the store. Strings that shardwire_bootstrap_read() gave become invalid.
shardwire_code shardwire_bootstrap_set(shardwire_bootstrap* bootstrap, const shardwire_bootstrap_fields* fields,
                                       shardwire_error** error);
/// Number of processes by the launcher's variables; 0 if no launcher set any.
shardwire_code shardwire_world_size_from_env(int32_t* world_size, shardwire_error** error);

SHARDWIRE_C_END
