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
  const char* failure;  ///< for people: why paths could not be determined; else ""
  size_t memory_count;  ///< host memory, then device memory if this process uses any
} shardwire_peer_path;
void shardwire_peer_path_init(shardwire_peer_path* path, size_t size);

/// One open transport between this process and a peer, for memory of one kind.
typedef struct shardwire_transport_path {
  size_t size;
  uint32_t version;
  shardwire_reach reach;
  const char* transport;                      ///< "tcp", ..., or "local" for this process itself
  const char* device;                         ///< for people: device and protocol
  shardwire_fallback_reason fallback_reason;  ///< why memory is not mapped, not read, or staged through host memory
  const char* fallback_detail;                ///< the same for people; "" if there is no reason
  uint64_t max_read_bytes;                    ///< per list of reads
  size_t max_message_ranges;                  ///< per message; 0: no messages
  size_t max_read_ranges;                     ///< per list of reads; 0: no reads
  int32_t max_reads;                          ///< lists that are worth keeping in flight at once
  bool map;                                   ///< memory of the peer is directly addressable
  bool read;                                  ///< memory registered by the peer is readable
  bool message;                               ///< the peer sends any memory on request
  bool gpu_direct;                            ///< device memory moves without passing host memory
} shardwire_transport_path;
void shardwire_transport_path_init(shardwire_transport_path* path, size_t size);

/// A transport that is not used, although it would come before the first one that is.
typedef struct shardwire_rejected_transport {
  size_t size;
  uint32_t version;
  const char* transport;
  shardwire_fallback_reason reason;
  const char* detail;  ///< the same for people
} shardwire_rejected_transport;
void shardwire_rejected_transport_init(shardwire_rejected_transport* rejected, size_t size);

/// Paths to all publishers of a name, ascending by layout rank, this process included.
typedef struct shardwire_paths shardwire_paths;
void shardwire_paths_free(shardwire_paths* paths);
/// Connects to each publisher of `name` over every transport that both have open; moves no data. For people and logs.
/// Errors: TIMED_OUT if the publishers are not known within the timeout; PEER_LOST if they cannot be determined.
shardwire_code shardwire_session_paths(shardwire_session* session, const char* name, int64_t timeout_ns,
                                       shardwire_paths** paths, shardwire_error** error);
size_t shardwire_paths_peer_count(const shardwire_paths* paths);
shardwire_code shardwire_paths_peer(const shardwire_paths* paths, size_t peer, shardwire_peer_path* path,
                                    shardwire_error** error);
/// Kind of memory `memory` of a peer, and the numbers of its connected and of its rejected transports. Any of the out
/// parameters may be NULL.
shardwire_code shardwire_paths_memory(const shardwire_paths* paths, size_t peer, size_t memory,
                                      shardwire_memory_kind* kind, size_t* transport_count, size_t* rejected_count,
                                      shardwire_error** error);
/// A connected transport; the best comes first.
shardwire_code shardwire_paths_transport(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                         shardwire_transport_path* path, shardwire_error** error);
shardwire_code shardwire_paths_rejected(const shardwire_paths* paths, size_t peer, size_t memory, size_t index,
                                        shardwire_rejected_transport* rejected, shardwire_error** error);

SHARDWIRE_C_END
