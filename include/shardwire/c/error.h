// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/types.h"

SHARDWIRE_C_BEGIN

/// Result of a call, grouped by the caller's possible reaction.
typedef int32_t shardwire_code;
enum {
  SHARDWIRE_OK = 0,
  SHARDWIRE_INVALID_ARGUMENT = 1,  ///< the call is wrong; fix the caller
  SHARDWIRE_LAYOUT_MISMATCH = 2,   ///< the two sides, or a layout and a shape, do not fit together
  SHARDWIRE_UNSUPPORTED = 3,       ///< legal, but not available in this build or not implemented
  SHARDWIRE_OUT_OF_RESOURCES = 4,  ///< memory, descriptors, threads
  SHARDWIRE_PEER_LOST = 5,         ///< a member died or closed its connection; other peers stay usable
  SHARDWIRE_TIMED_OUT = 6,         ///< the deadline of the operation passed
  SHARDWIRE_CANCELLED = 7,         ///< the caller, or a callback, ended the operation
  SHARDWIRE_TRANSPORT_FAILED = 8,  ///< a transport, a connection or the caller's store failed
  SHARDWIRE_INTERNAL = 9,          ///< a bug in the library
  SHARDWIRE_WITHDRAWN = 10,        ///< a source retired memory while it was being read, and there is no replacement
  SHARDWIRE_STEP_MISMATCH = 11,    ///< the publication is not at the requested step, or the sources differ in steps
  SHARDWIRE_CORRUPT = 12,          ///< bytes are not those that were published, and no other rank has them
};
/// Stable lower-case name, e.g. "peer_lost"; "unknown" for a number that is no code.
const char* shardwire_code_name(shardwire_code code);

/// A region of a wanted tensor that no rank holds, or that did not arrive at rank `target`.
typedef struct shardwire_gap {
  shardwire_key key;
  shardwire_box box;
  int32_t target;
} shardwire_gap;

/// Description of a failed call.
typedef struct shardwire_error shardwire_error;
void shardwire_error_free(shardwire_error* error);
shardwire_code shardwire_error_code(const shardwire_error* error);
/// A full sentence that names the cause; "" for a NULL error.
const char* shardwire_error_message(const shardwire_error* error);
/// Whether, judged by the code, the same call can succeed later without a change by the caller. After the loss of
/// member 0 only restores that have their plan succeed: end the session, and join again.
bool shardwire_error_retryable(const shardwire_error* error);
/// The members, or ranks of a layout, that the error concerns.
const int32_t* shardwire_error_ranks(const shardwire_error* error, size_t* count);
/// All boxes without a holder (SHARDWIRE_LAYOUT_MISMATCH) or not yet complete (a failed restore).
const shardwire_gap* shardwire_error_gaps(const shardwire_error* error, size_t* count);

SHARDWIRE_C_END
