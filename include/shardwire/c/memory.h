// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/tensor.h"

SHARDWIRE_C_BEGIN

typedef int32_t shardwire_memory_kind;
enum {
  SHARDWIRE_MEMORY_DETECT = 0,  ///< ask the driver; host if there is no driver or it does not know the memory
  SHARDWIRE_MEMORY_HOST = 1,
  SHARDWIRE_MEMORY_CUDA = 2,
};

/// Place of the local part of one tensor. The layout gives the local element at which each of the rank's boxes starts;
/// the view gives the address of local element 0, and the strides of the local array if it is not dense row-major.
/// Ownership: the memory has to stay valid while a publication, restore or exchange uses it. The caller sees to that,
///            or hands over an owner. While it is unmapped or freed too early, accesses by the library end the process.
/// Owner:     a successful shardwire_catalog_add() takes over `owner`. The library calls `release(owner)` once, after
///            the last catalog, publication, restore and exchange that uses the memory has ended: on the thread that
///            frees the catalog if no operation used it, else on a thread that the library has for this purpose, where
///            it may take locks. A failed call does not take it over.
/// Devices:   if the process has loaded a driver, publish and restore ask it for the kind of memory.
/// Events:    record `ready_event` before the call that uses the view. The event is borrowed until the publication
///            exists or the restore has ended. Publish, update and exchange block until it has happened. A restore
///            does not block, and writes nothing before it has happened.
typedef struct shardwire_view {
  size_t size;
  uint32_t version;
  shardwire_memory_kind kind;  ///< default: detect
  void* data;                  ///< may be NULL if the rank holds no element
  const int64_t* strides;      ///< elements, one per dim of the local array, as torch's stride(); NULL: dense
  size_t stride_count;
  void* ready_event;            ///< a cudaEvent_t after which the bytes may be read or overwritten; NULL: at once
  int64_t elements;             ///< number that the rank holds, checked against the layout; -1: not given
  int64_t view_bytes;           ///< the same in bytes, for memory without a type; -1: not given
  int64_t offset;               ///< local element 0 is `offset` elements after `data`: torch's storage_offset()
  shardwire_dtype dtype;        ///< type of the memory, checked against the tensor's; SHARDWIRE_DTYPE_NONE: not given
  int32_t device;               ///< CUDA device ordinal, checked against the driver's; -1: not given
  void* owner;                  ///< see Owner
  void (*release)(void* owner); /**< NULL: the view has no owner */
  bool read_only;               ///< may be published, not restored into
} shardwire_view;
void shardwire_view_init(shardwire_view* view, size_t size);

/// Waits until the owners that ended operations kept are released, for at most `timeout_ns`. From then on ended
/// operations release none: for interpreters, whose objects cannot be destroyed after their end.
shardwire_code shardwire_stop_releasing_owners(int64_t timeout_ns, shardwire_error** error);

/// Memory that peers can reach without a copy in between, from shardwire_session_allocate(): zeroed, aligned to 64
/// bytes or more. It is freed when the arena and every publication that uses it are gone, and may outlive its session.
/// A child of fork() does not inherit it.
/// Threads: use a handle from one thread at a time, its memory from any.
typedef struct shardwire_arena shardwire_arena;
void shardwire_arena_free(shardwire_arena* arena);
/// Address of the memory; a device address for device memory.
void* shardwire_arena_data(const shardwire_arena* arena);
uint64_t shardwire_arena_size_bytes(const shardwire_arena* arena);
/// Returns memory to the system before the arena is freed. An arena consists of parts of 256 MiB or more; this frees
/// the parts that lie wholly in the range, and gives the number of bytes freed. The caller must not use freed memory
/// again. `freed_bytes` may be NULL. Errors: INVALID_ARGUMENT for a range that is not inside the arena.
shardwire_code shardwire_arena_discard(shardwire_arena* arena, uint64_t offset_bytes, uint64_t range_bytes,
                                       uint64_t* freed_bytes, shardwire_error** error);

/// Memory of the caller that peers can read directly, from shardwire_session_register_memory(). Freeing the handle
/// withdraws the memory; retire publications in it first. The memory has to stay mapped until then.
/// Threads: use a handle from one thread at a time.
typedef struct shardwire_registration shardwire_registration;
void shardwire_registration_free(shardwire_registration* registration);
/// Size of the whole registered range, which may be larger than the range asked for.
uint64_t shardwire_registration_size_bytes(const shardwire_registration* registration);

SHARDWIRE_C_END
