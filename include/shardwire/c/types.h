// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/// Enclose the declarations of a C header. Headers are valid C11 and C++.
#ifdef __cplusplus
#define SHARDWIRE_C_BEGIN _Pragma("GCC visibility push(default)") extern "C" {
#define SHARDWIRE_C_END \
  }                     \
  _Pragma("GCC visibility pop")
#else
#define SHARDWIRE_C_BEGIN _Pragma("GCC visibility push(default)")
#define SHARDWIRE_C_END _Pragma("GCC visibility pop")
#endif

SHARDWIRE_C_BEGIN

// Rules for all functions of the C API.
//
// Results:   a function that can fail returns a shardwire_code, gives its results through out parameters, and takes a
//            `shardwire_error**` last. A failed call sets no out parameter. If `error` is not NULL, it gives the caller
//            an error handle; a successful call leaves `*error` as it is. A function that cannot fail returns its
//            result; with a NULL handle it returns 0, false or NULL. Comments leave out the SHARDWIRE_ of codes.
// NULL:      a NULL handle, and a NULL pointer where a value is required, give SHARDWIRE_INVALID_ARGUMENT. Options may
//            be NULL, which stands for their defaults. An array of no elements may be NULL.
// Handles:   the caller frees each non-const handle that it receives with the function `_free` of its type, which
//            accepts NULL. A const handle, an array and a string that a function returns belong to the handle they come
//            from, and live until it is freed.
// Structs:   a struct that begins with `size` and `version` can grow in later versions of the library. Call its `_init`
//            function with `sizeof` before any other use. It fills in the defaults, `size`, and in `version` the
//            version of the struct that the running library knows. The library reads and writes at most the smaller of
//            `size` and its own size of the struct. Fields that the caller's struct lacks have their defaults. All
//            other structs never change.
// Units:     a name that ends in `_ns` is a time in nanoseconds, one that ends in `_bytes` a size in bytes. INT64_MAX
//            as a timeout stands for no limit. Shapes, offsets and strides count elements. Boxes are half-open.
// Strings:   NUL-terminated UTF-8. The library copies strings and arrays that it is given before a call returns.
// Callbacks: a function pointer with a `void* context`, which the library hands back. A C++ exception that leaves a
//            callback ends the operation with SHARDWIRE_CANCELLED. A callback may not free the handle it belongs to.
//            Functions that wait for its session fail in it with SHARDWIRE_UNSUPPORTED: restore, exchange, gather, paths,
//            inventory, close, and the wait of an operation that is not over.
// Threads:   any thread may call functions of different handles. Where a function of one handle may run concurrently
//            with others, its comment says so. No thread may use a handle while another frees it.

/// Maximum number of dimensions of a tensor.
#define SHARDWIRE_MAX_DIMS 8

/// Names one piece of optimizer state: the fully qualified name of the parameter, and the state, e.g. "exp_avg".
typedef struct shardwire_key {
  const char* fqn;
  const char* state;
} shardwire_key;

/// Half-open region [offset, offset + extent) in global element coordinates. Only the first `dims` entries count. A box
/// of zero dimensions has volume 1.
typedef struct shardwire_box {
  size_t dims;
  int64_t offset[SHARDWIRE_MAX_DIMS];
  int64_t extent[SHARDWIRE_MAX_DIMS];
} shardwire_box;

/// Distance to a peer: this process, another process of this host, or anything else.
typedef int32_t shardwire_reach;
enum { SHARDWIRE_REACH_PROCESS = 0, SHARDWIRE_REACH_HOST = 1, SHARDWIRE_REACH_NETWORK = 2 };

/// Why bytes do not take a better path. A text beside it has the details. Later versions may add reasons.
typedef int32_t shardwire_fallback_reason;
enum {
  SHARDWIRE_FALLBACK_NONE = 0,              ///< no better path is known
  SHARDWIRE_FALLBACK_BY_DESIGN = 1,         ///< the transport does no better
  SHARDWIRE_FALLBACK_OTHER_HOST = 2,        ///< shared memory and local sockets reach one host only
  SHARDWIRE_FALLBACK_NOT_IN_ARENA = 3,      ///< the source's memory is in no arena, so that it is read or sent
  SHARDWIRE_FALLBACK_NOT_CONNECTED = 4,     ///< nothing needed it
  SHARDWIRE_FALLBACK_LEFT_OUT = 5,          ///< session options, or a variable of UCX or libfabric, name others
  SHARDWIRE_FALLBACK_NOT_BUILT = 6,         ///< this build of the library is without it
  SHARDWIRE_FALLBACK_LIBRARY_MISSING = 7,   ///< a library that it needs cannot be loaded
  SHARDWIRE_FALLBACK_LIBRARY_UNFIT = 8,     ///< that library lacks what is needed
  SHARDWIRE_FALLBACK_NO_DEVICE = 9,         ///< no NIC with an active port, or no GPU that this process uses
  SHARDWIRE_FALLBACK_MEMLOCK = 10,          ///< this process may pin too little memory (ulimit -l)
  SHARDWIRE_FALLBACK_PEER_WITHOUT = 11,     ///< the peer has not opened it, or does not let itself be read
  SHARDWIRE_FALLBACK_OTHER_DOMAIN = 12,     ///< the peer's has another version, or is in another network
  SHARDWIRE_FALLBACK_OTHER_NAMESPACE = 13,  ///< the peer is in another namespace of processes or of networks
  SHARDWIRE_FALLBACK_OTHER_USER = 14,       ///< the peer is a process of another user
  SHARDWIRE_FALLBACK_UNDUMPABLE = 15,       ///< the peer is not dumpable (prctl PR_SET_DUMPABLE)
  SHARDWIRE_FALLBACK_PTRACE_SCOPE = 16,     ///< Yama forbids to attach to the peer (kernel.yama.ptrace_scope)
  SHARDWIRE_FALLBACK_SECCOMP = 17,          ///< a seccomp filter forbids process_vm_readv
  SHARDWIRE_FALLBACK_NOT_PERMITTED = 18,    ///< another rule of the kernel forbids to attach to the peer
  SHARDWIRE_FALLBACK_NO_GPU_DIRECT = 19,    ///< memory of a GPU passes host memory: NIC, driver or transport
  SHARDWIRE_FALLBACK_NO_PEER_ACCESS = 20,   ///< memory of a GPU passes host memory: another GPU cannot access it
  SHARDWIRE_FALLBACK_FAILED = 21,           ///< connecting, registering or reading failed
};
#define SHARDWIRE_FALLBACK_COUNT 22
/// Such as "memlock"; "unknown" for a reason of a later version. A constant.
const char* shardwire_fallback_reason_name(shardwire_fallback_reason reason);

/// Transfer method of bytes. See the README for what each does.
typedef int32_t shardwire_method;
enum {
  SHARDWIRE_METHOD_ANY = -1,   ///< the cheapest; not for functions that name one method
  SHARDWIRE_METHOD_LOCAL = 0,  ///< in reports and costs only
  SHARDWIRE_METHOD_MAPPED = 1,
  SHARDWIRE_METHOD_READ = 2,
  SHARDWIRE_METHOD_SIEVED_READ = 3,
  SHARDWIRE_METHOD_ZCOPY = 4,
  SHARDWIRE_METHOD_PACKED = 5,
  SHARDWIRE_METHOD_COLLECTIVE = 6,  ///< not for restores
};
#define SHARDWIRE_METHOD_COUNT 7

/// Choice between ranks that hold the same elements.
typedef int32_t shardwire_replicas;
enum {
  SHARDWIRE_REPLICAS_SPREAD = 0,  ///< replicas are equal: from this process, else from this host, else spread evenly
  SHARDWIRE_REPLICAS_FIRST = 1,   ///< replicas may differ: every reader takes the lowest rank that holds the element
  /// Replicas have to be equal: as FIRST, and every other holder is compared before the commit. If one differs, the
  /// restore fails with layout_mismatch; for restores only.
  SHARDWIRE_REPLICAS_COMPARE = 2,
};

/// A list of strings or byte strings.
typedef struct shardwire_strings shardwire_strings;
void shardwire_strings_free(shardwire_strings* strings);
size_t shardwire_strings_count(const shardwire_strings* strings);
/// Entry `index`, followed by a NUL, and its size without it; NULL if there is no such entry. `size_bytes` may be NULL.
const char* shardwire_strings_at(const shardwire_strings* strings, size_t index, size_t* size_bytes);

/// Version of the library that is linked, e.g. "0.1.0"; it may differ from SHARDWIRE_VERSION.
const char* shardwire_version(void);

SHARDWIRE_C_END
