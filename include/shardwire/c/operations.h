// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/catalog.h"
#include "shardwire/c/options.h"
#include "shardwire/c/report.h"

SHARDWIRE_C_BEGIN

// Running operations have these functions in common:
// wait               blocks until the operation has ended, and fails with the error that ended it.
// wait_for           as wait, for at most `timeout_ns`; gives whether the operation has ended.
// poll               gives whether wait would not block.
// event_descriptor   gives a descriptor that is readable, and stays so, once wait would not block: for poll(2), epoll
//                    and event loops. The operation owns it; do not read or close it.
// on_done            calls `callback` once when wait would not block any more: on a thread of the library, or on this
//                    one if that is so already. Replaces an earlier callback. It must not block.
// on_progress        calls `callback` on a thread of the library, at most once per `interval_ns` and once at the end,
//                    but not if a restore ends with its session. An interval of 0 reports every change, at most once per
//                    millisecond. It must not block.
// Threads: call wait, wait_for and what is valid afterwards from one thread; all other functions may run concurrently.

typedef void (*shardwire_done_callback)(void* context);
typedef void (*shardwire_progress_callback)(void* context, const shardwire_progress* progress);

/// A publication that is being retired. Freeing it does not wait; the retirement goes on.
typedef struct shardwire_retirement shardwire_retirement;
void shardwire_retirement_free(shardwire_retirement* retirement);
/// Ends when no reader holds a lease. Errors: TIMED_OUT naming the remaining readers; their leases are revoked.
shardwire_code shardwire_retirement_wait(shardwire_retirement* retirement, shardwire_error** error);
shardwire_code shardwire_retirement_wait_for(shardwire_retirement* retirement, int64_t timeout_ns, bool* done,
                                             shardwire_error** error);
shardwire_code shardwire_retirement_poll(const shardwire_retirement* retirement, bool* done, shardwire_error** error);
shardwire_code shardwire_retirement_event_descriptor(shardwire_retirement* retirement, int* descriptor,
                                                     shardwire_error** error);
shardwire_code shardwire_retirement_on_done(shardwire_retirement* retirement, shardwire_done_callback callback,
                                            void* context, shardwire_error** error);

/// A catalog that peers can read, pinned to one step. Freeing it retires it without waiting for readers.
/// Threads: use one handle from one thread at a time.
typedef struct shardwire_publication shardwire_publication;
void shardwire_publication_free(shardwire_publication* publication);
/// Withdraws the publication and returns when no reader holds a lease on it. The caller may then change or free the
/// memory. Errors: TIMED_OUT naming the remaining readers; their leases are revoked.
shardwire_code shardwire_publication_retire(shardwire_publication* publication, int64_t timeout_ns,
                                            shardwire_error** error);
/// As retire, without waiting: the retirement tells when the caller may change or free the memory.
shardwire_code shardwire_publication_start_retire(shardwire_publication* publication, int64_t timeout_ns,
                                                  shardwire_retirement** retirement, shardwire_error** error);
/// Replaces the publication by `held` at `step` under the same name; peers see either the old or the new one. Then
/// waits for readers of the old one as retire does.
/// Errors: INVALID_ARGUMENT if the publication was retired, or if both catalogs are published in place and
///         share memory, and as shardwire_session_publish(): the old one then stays published. TIMED_OUT: the
///         new one is published, and the caller may reuse the old memory.
shardwire_code shardwire_publication_update(shardwire_publication* publication, const shardwire_catalog* held,
                                            int64_t step, shardwire_snapshot snapshot, int64_t timeout_ns,
                                            shardwire_error** error);

/// One running restore. Freeing it cancels it and returns once no more writes can follow.
typedef struct shardwire_restore shardwire_restore;
void shardwire_restore_free(shardwire_restore* restore);
/// Ends when every wanted element is in place and committed.
/// Errors: LAYOUT_MISMATCH   before any byte moves: all ranks have published and none holds some boxes (gaps), dtype or
///                           shape differ between the two sides, or authoritative ranks disagree about values (ranks)
///         STEP_MISMATCH     the publications are not at the requested step, or not all at one step
///         WITHDRAWN         a source withdrew and no replacement appeared by the deadline
///         PEER_LOST         a needed source died, or this process lost its membership
///         TIMED_OUT         the deadline passed; the ranks are those the restore was waiting for
///         CANCELLED         the restore was cancelled, its session ended, or a callback threw
///         UNSUPPORTED       the method cannot move a piece, this process and a source share no transport, or one
///                           of them encrypts and the other cannot
///         OUT_OF_RESOURCES  the staging budget is smaller than one element, or the system is out of memory
///         TRANSPORT_FAILED  the transport failed, or digests differ
shardwire_code shardwire_restore_wait(shardwire_restore* restore, shardwire_error** error);
shardwire_code shardwire_restore_wait_for(shardwire_restore* restore, int64_t timeout_ns, bool* done,
                                          shardwire_error** error);
shardwire_code shardwire_restore_poll(const shardwire_restore* restore, bool* done, shardwire_error** error);
/// Returns once all values have arrived, with `stop_at_values` before a byte is written; shardwire_restore_value() gives them
/// from then on. Without it, returns at the end. Errors: as shardwire_restore_wait().
shardwire_code shardwire_restore_wait_values(shardwire_restore* restore, shardwire_error** error);
/// Whether shardwire_restore_wait_values() would return at once.
shardwire_code shardwire_restore_values_ready(const shardwire_restore* restore, bool* ready, shardwire_error** error);
/// Lets a restore that stands at its values go on; one that has not reached them yet does not stand. If it has to read values
/// again, and they differ, it ends with WITHDRAWN.
shardwire_code shardwire_restore_proceed(shardwire_restore* restore, shardwire_error** error);
/// The restore ends with CANCELLED. Its memory is reusable then; the contents are unspecified.
shardwire_code shardwire_restore_cancel(shardwire_restore* restore, shardwire_error** error);
/// Continues a restore that has failed or was cancelled, for at most `timeout_ns` from now; then wait for it as before. What is
/// in place and proven stays; the rest comes from members that publish the same step and ranks with the same manifest,
/// which the restore waits for. The caller leaves the destination alone from the end until this call. An on_done callback
/// has to be set again.
/// Errors: INVALID_ARGUMENT if the restore runs or has completed, or if the session is closed.
shardwire_code shardwire_restore_resume(shardwire_restore* restore, int64_t timeout_ns, shardwire_error** error);
shardwire_code shardwire_restore_event_descriptor(shardwire_restore* restore, int* descriptor, shardwire_error** error);
shardwire_code shardwire_restore_on_done(shardwire_restore* restore, shardwire_done_callback callback, void* context,
                                         shardwire_error** error);
shardwire_code shardwire_restore_on_progress(shardwire_restore* restore, shardwire_progress_callback callback,
                                             void* context, int64_t interval_ns, shardwire_error** error);
/// Valid once the restore has ended; earlier calls fail with INVALID_ARGUMENT.
shardwire_code shardwire_restore_report(const shardwire_restore* restore, const shardwire_report** report,
                                        shardwire_error** error);
/// Whether a value was received for the key. Valid once the restore has ended, or stands at its values.
shardwire_code shardwire_restore_has_value(const shardwire_restore* restore, const char* fqn, const char* state,
                                           bool* has, shardwire_error** error);
/// The value received for the key. Valid once the restore has ended, or stands at its values.
/// Errors: INVALID_ARGUMENT if the catalog does not name the key, or the restore skipped it.
shardwire_code shardwire_restore_value(const shardwire_restore* restore, const char* fqn, const char* state,
                                       const shardwire_value** value, shardwire_error** error);
/// The options of the groups that shardwire_catalog_add_param_groups() requested, as a list with a map for each group.
/// An option that no parameter of a group had keeps its value in `wanted`.
/// Errors: LAYOUT_MISMATCH if parameters of one group received different values of an option.
shardwire_code shardwire_restore_param_groups(const shardwire_restore* restore, const shardwire_param_group* wanted,
                                              size_t count, shardwire_value** options, shardwire_error** error);

/// Result of an exchange, apart from the tensors.
typedef struct shardwire_exchange_result shardwire_exchange_result;
void shardwire_exchange_result_free(shardwire_exchange_result* result);
const shardwire_report* shardwire_exchange_result_report(const shardwire_exchange_result* result);
/// The value received for the key; NULL if there is none.
const shardwire_value* shardwire_exchange_result_value(const shardwire_exchange_result* result, const char* fqn,
                                                       const char* state);

/// A running exchange. Freeing it cancels it and returns once it has ended.
typedef struct shardwire_exchange shardwire_exchange;
void shardwire_exchange_free(shardwire_exchange* exchange);
/// Ends when this member has all that it wants. Errors: as shardwire_session_exchange().
shardwire_code shardwire_exchange_wait(shardwire_exchange* exchange, shardwire_error** error);
shardwire_code shardwire_exchange_wait_for(shardwire_exchange* exchange, int64_t timeout_ns, bool* done,
                                           shardwire_error** error);
shardwire_code shardwire_exchange_poll(const shardwire_exchange* exchange, bool* done, shardwire_error** error);
/// Ends the exchange on every member, here with CANCELLED.
shardwire_code shardwire_exchange_cancel(shardwire_exchange* exchange, shardwire_error** error);
shardwire_code shardwire_exchange_event_descriptor(shardwire_exchange* exchange, int* descriptor,
                                                   shardwire_error** error);
shardwire_code shardwire_exchange_on_done(shardwire_exchange* exchange, shardwire_done_callback callback, void* context,
                                          shardwire_error** error);
/// The total is the bytes that this member wants. The stages may repeat.
shardwire_code shardwire_exchange_on_progress(shardwire_exchange* exchange, shardwire_progress_callback callback,
                                              void* context, int64_t interval_ns, shardwire_error** error);
/// Valid once the exchange has ended without an error.
shardwire_code shardwire_exchange_result_of(const shardwire_exchange* exchange,
                                            const shardwire_exchange_result** result, shardwire_error** error);

SHARDWIRE_C_END
