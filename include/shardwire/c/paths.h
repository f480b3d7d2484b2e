// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/session.h"

SHARDWIRE_C_BEGIN

/// Path between this process and one publisher.
typedef struct shardwire_peer_path {
  size_t size;
  uint32_t version;
  int32_t member;
  int32_t rank;         ///< in the publication's layout
  const char* address;  ///< of its control port, as "10.0.0.7:51234"; "" for this process
  const char* why_not;  ///< reason if paths could not be determined; else ""
  size_t memory_count;  ///< host memory, then device memory if this process uses any
} shardwire_peer_path;
void shardwire_peer_path_init(shardwire_peer_path* path, size_t size);

/// One fabric between this process and a peer, for memory of one kind.
typedef struct shardwire_fabric_path {
  size_t size;
  uint32_t version;
  shardwire_reach reach;
  const char* transport;      ///< "tcp", ..., or "local" for this process itself
  const char* carrier;        ///< for people: protocol and device
  const char* why_not;        ///< for people: reason for not mapping, not reading, or staging through host memory
  uint64_t max_read_bytes;    ///< per list of reads
  size_t max_message_ranges;  ///< per message; 0: no messages
  size_t max_read_ranges;     ///< per list of reads; 0: no reads
  int32_t max_reads;          ///< lists that are worth keeping in flight at once
  bool map;                   ///< memory of the peer is directly addressable
  bool read;                  ///< memory registered by the peer is readable
  bool message;               ///< the peer sends any memory on request
  bool gpu_direct;            ///< device memory moves without passing host memory
} shardwire_fabric_path;
void shardwire_fabric_path_init(shardwire_fabric_path* path, size_t size);

/// Paths to all publishers of a name, ascending by layout rank, this process included.
typedef struct shardwire_paths shardwire_paths;
void shardwire_paths_free(shardwire_paths* paths);
/// Connects to each publisher of `name` over every fabric that both have open; moves no data. For people and logs.
/// Errors: TIMED_OUT if the publishers are not known within the timeout; PEER_LOST if they cannot be determined.
shardwire_code shardwire_session_paths(shardwire_session* session, const char* name, int64_t timeout_ns,
                                       shardwire_paths** paths, shardwire_error** error);
size_t shardwire_paths_peer_count(const shardwire_paths* paths);
shardwire_code shardwire_paths_peer(const shardwire_paths* paths, size_t peer, shardwire_peer_path* path,
                                    shardwire_error** error);
/// Kind of memory `memory` of a peer, the number of its connected fabrics, and the number of fabrics that would be
/// better but are not used. Any of the out parameters may be NULL.
shardwire_code shardwire_paths_memory(const shardwire_paths* paths, size_t peer, size_t memory,
                                      shardwire_memory_kind* kind, size_t* fabric_count, size_t* not_better_count,
                                      shardwire_error** error);
/// A connected fabric; the best comes first.
shardwire_code shardwire_paths_fabric(const shardwire_paths* paths, size_t peer, size_t memory, size_t fabric,
                                      shardwire_fabric_path* path, shardwire_error** error);
/// "<transport>: <reason>" of a fabric that would be better but is not used.
shardwire_code shardwire_paths_not_better(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                          const char** reason, shardwire_error** error);

SHARDWIRE_C_END
