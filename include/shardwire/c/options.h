// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/costs.h"

SHARDWIRE_C_BEGIN

/// Values of fields that are not given.
#define SHARDWIRE_UNSET_BYTES UINT64_MAX
#define SHARDWIRE_UNSET_STEP INT64_MIN
#define SHARDWIRE_UNSET_NS (-1)

typedef int32_t shardwire_log_level;
enum { SHARDWIRE_LOG_DEBUG = 0, SHARDWIRE_LOG_INFO = 1, SHARDWIRE_LOG_WARNING = 2, SHARDWIRE_LOG_ERROR = 3 };

/// See shardwire::MetricUpdate. Valid during the call that passes it. `size` and `version` are the library's, so a program may
/// read later fields only within `size`.
typedef struct shardwire_metric_attribute {
  const char* key;
  const char* value;
} shardwire_metric_attribute;
typedef struct shardwire_metric_update {
  size_t size;
  uint32_t version;
  const char* name;
  double value;
  const shardwire_metric_attribute* attributes;
  size_t attribute_count;
} shardwire_metric_update;

/// Options of shardwire_session_join(). Fields that are not given take their value from the environment.
typedef struct shardwire_session_options {
  size_t size;
  uint32_t version;
  uint32_t copy_threads;         ///< maximum number of concurrent copy threads; 0: by the number of cores
  const char* transport;         ///< "auto", or a list such as "shm,tcp"; "": SHARDWIRE_TRANSPORT, else auto
  uint64_t staging_bytes;        ///< limit of the staging that serves readers; not given: SHARDWIRE_STAGING_BYTES
  int64_t join_timeout_ns;       ///< not given: SHARDWIRE_JOIN_TIMEOUT, else 60 s
  int64_t spin_ns;               ///< how long the session's thread polls before it sleeps; default 0.1 ms
  const shardwire_costs* costs;  ///< NULL: the file that SHARDWIRE_CALIBRATION names, else the built-in costs
  void* log_context;
  /** Called on the session's thread with every message; must not block. NULL: standard error, see SHARDWIRE_LOG and
      SHARDWIRE_LOG_FORMAT. */
  void (*log)(void* context, shardwire_log_level level, const char* message);
  void* interrupted_context;
  /** For programs that handle signals between calls, such as interpreters: every call of the session that waits calls
      it on its own thread about ten times a second. If it returns true, the call ends with CANCELLED. The
      waits of a restore end, not the restore; retire, update and close end as if their timeout had passed; an exchange
      ends on every member. NULL: calls wait until they end. `_free` functions never call it. */
  bool (*interrupted)(void* context);
  /** Bytes of tensors over the library's own tcp are encrypted, as with SHARDWIRE_ENCRYPT_PAYLOAD=1. Needs a job key.
      Default false. */
  bool encrypt_payload;
  /** The keeper of this host, see shardwire::KeeperOptions: the job whose state it keeps, and its local socket. NULL or "":
      SHARDWIRE_KEEPER and SHARDWIRE_KEEPER_SOCKET. */
  const char* keeper_job;
  const char* keeper_socket;
  /** Hosts that may fail together have the same. NULL or "": SHARDWIRE_HOST_DOMAIN, else the host itself. */
  const char* host_domain;
  void* telemetry_context;
  /** Receive what the session counts, see shardwire::Telemetry: an amount to add to a sum, a latest value, a value to put
      into a bucket. Called one at a time with a lock held, on the thread that counts: they must not block, nor call the
      session. None is called after shardwire_session_close() or shardwire_session_free(), unless a callback of the session
      calls that. NULL: left out. */
  void (*counter)(void* context, const shardwire_metric_update* update);
  void (*gauge)(void* context, const shardwire_metric_update* update);
  void (*histogram)(void* context, const shardwire_metric_update* update);
} shardwire_session_options;
void shardwire_session_options_init(shardwire_session_options* options, size_t size);

typedef int32_t shardwire_snapshot;
enum {
  SHARDWIRE_SNAPSHOT_NONE = 0,  ///< publish in place: the bytes must not change until retire has returned
  SHARDWIRE_SNAPSHOT_COPY = 1,  ///< copy into the session's own arena first: training may go on at once
};

typedef struct shardwire_publish_options {
  size_t size;
  uint32_t version;
  shardwire_snapshot snapshot;      ///< default: none
  const char* name;                 ///< default "state"
  int64_t step;                     ///< default 0
  int32_t digest;                   ///< check what readers get against digests of what is published now; default 0
  int32_t keep_steps;               ///< snapshots that the keeper of this host holds, see shardwire::Keep; default 0
  int32_t buddies;                  ///< copies on other hosts, see shardwire::PublishOptions; default 0
  uint64_t buddy_bytes_per_second;  ///< limit for the copies that this member makes; default 0: none
} shardwire_publish_options;
void shardwire_publish_options_init(shardwire_publish_options* options, size_t size);

typedef int32_t shardwire_verify;
enum {
  SHARDWIRE_VERIFY_GENERATION = 0,  ///< the source's step and generation are checked after the read
  SHARDWIRE_VERIFY_DIGEST = 1,      ///< also compares digests of what was read and of what the source holds afterwards
};

/// A CUDA event of the caller's that a restore records on its device once everything is committed.
typedef struct shardwire_done_event {
  void* event;
  int32_t device;
} shardwire_done_event;

/// Which step a restore takes if sources have several; see shardwire::StepRule.
typedef int32_t shardwire_step_rule;
enum {
  SHARDWIRE_STEP_AGREED = 0,           ///< the newest at which all ranks are that publish; else STEP_MISMATCH
  SHARDWIRE_STEP_NEWEST_COMPLETE = 1,  ///< the newest of which every wanted element has a holder
};

typedef struct shardwire_restore_options {
  size_t size;
  uint32_t version;
  shardwire_verify verify;                 ///< default: generation
  const char* name;                        ///< name of the publications to read; default "state"
  int64_t step;                            ///< refuse any other; not given: by `step_rule`
  int64_t timeout_ns;                      ///< from the call; default 60 s
  uint64_t staging_bytes;                  ///< limit of this restore's own staging; default 256 MiB
  uint64_t ingress_bytes_per_second;       ///< cap of remote bytes into this rank; 0: none
  int64_t discovery_grace_ns;              ///< how long to wait for ranks that have not published; default 2 s
  const shardwire_done_event* done_events; /**< recorded before a wait returns, or a poll gives true */
  size_t done_event_count;
  /** The only method for bytes of other processes: SHARDWIRE_METHOD_MAPPED .. SHARDWIRE_METHOD_PACKED; default:
      SHARDWIRE_METHOD_ANY. */
  shardwire_method method;
  shardwire_replicas replicas;    ///< default: spread
  bool bind_only;                 ///< only plan, connect and choose methods; move nothing
  int64_t notice_ns;              ///< silence after which a source is given up where others hold the same; default 5 s
  shardwire_step_rule step_rule;  ///< default: agreed
  bool stop_at_values;            ///< stand once all values have arrived, until shardwire_restore_proceed()
} shardwire_restore_options;
void shardwire_restore_options_init(shardwire_restore_options* options, size_t size);

typedef struct shardwire_exchange_options {
  size_t size;
  uint32_t version;
  shardwire_verify verify;            ///< default: generation
  int64_t timeout_ns;                 ///< from the call; default 60 s
  uint64_t staging_bytes;             ///< limit of all staging that this member uses at once; default 256 MiB
  uint64_t ingress_bytes_per_second;  ///< cap of remote bytes into this rank; 0: none
  void* communicator;  ///< an idle ncclComm_t of all members with device memory, for NCCL rounds; or NULL
  /** As in a restore, or SHARDWIRE_METHOD_COLLECTIVE: if any member gives that, all remote bytes go in rounds. */
  shardwire_method method;
  shardwire_replicas replicas;  ///< default: spread
} shardwire_exchange_options;
void shardwire_exchange_options_init(shardwire_exchange_options* options, size_t size);

SHARDWIRE_C_END
