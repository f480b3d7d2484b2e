// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/bootstrap.h"
#include "shardwire/c/operations.h"
#include "shardwire/c/plan.h"

SHARDWIRE_C_BEGIN

/// Membership of one process in a job. Joining is no barrier: members may come and go at any time. A publisher needs to
/// call nothing: the session serves readers on a thread of its own.
/// Threads: all functions but _free may run concurrently on one session.
/// Ownership: freeing a session ends its restores with CANCELLED and its publications without waiting for
///            their readers; free their handles before or after it. Arenas stay.
/// Fork:    in a child of fork() the handles of its parent are inert; free them, or leave them.
typedef struct shardwire_session shardwire_session;
void shardwire_session_free(shardwire_session* session);
/// Joins the job. Member 0 serves the rendezvous; the others retry until it answers, within the join timeout.
/// Errors: TIMED_OUT, with rank 0, if member 0 does not answer. INVALID_ARGUMENT if the port is taken; if run id, job
///         key or world size differ from member 0's; if a live member has the same rank; for invalid addresses, options
///         and variables. UNSUPPORTED if the transport is not in this build or does not work on this machine.
///         TRANSPORT_FAILED if the caller's store fails.
shardwire_code shardwire_session_join(const shardwire_bootstrap* bootstrap, const shardwire_session_options* options,
                                      shardwire_session** session, shardwire_error** error);
/// Leaves in order: retires all publications and waits for their readers at most `timeout_ns`. Later calls, except rank
/// and world_size, fail. A second close does nothing.
shardwire_code shardwire_session_close(shardwire_session* session, int64_t timeout_ns, shardwire_error** error);

int32_t shardwire_session_rank(const shardwire_session* session);
int32_t shardwire_session_world_size(const shardwire_session* session);
/// Name and version of every open transport, e.g. "tcp 1".
shardwire_code shardwire_session_transports(const shardwire_session* session, shardwire_strings** transports,
                                            shardwire_error** error);
shardwire_code shardwire_session_usage(const shardwire_session* session, shardwire_usage* usage,
                                       shardwire_error** error);

/// Allocates zeroed memory that peers can map or read directly: of the host (SHARDWIRE_MEMORY_HOST, ignores `device`)
/// or of a device (SHARDWIRE_MEMORY_CUDA). Zero bytes are legal.
/// Errors: OUT_OF_RESOURCES if there is no such memory; UNSUPPORTED if the process has no device.
shardwire_code shardwire_session_allocate(shardwire_session* session, uint64_t arena_bytes, shardwire_memory_kind kind,
                                          int32_t device, shardwire_arena** arena, shardwire_error** error);
/// Offers a dense range of the caller's memory, with its size in `elements` and `dtype` or in `view_bytes`, for direct
/// reading by peers. Blocks while the system pins it. The owner of `view` is ignored.
/// Errors: INVALID_ARGUMENT for a view without a size or with strides, and for unmapped memory; OUT_OF_RESOURCES if the
///         system refuses to pin it.
shardwire_code shardwire_session_register_memory(shardwire_session* session, const shardwire_view* view,
                                                 shardwire_registration** registration, shardwire_error** error);

/// Makes `held` readable by peers. Returns once peers can see it. At most one publication of a member has a name.
/// Errors: INVALID_ARGUMENT for memory that is not mapped, and if this member already publishes the name;
///         OUT_OF_RESOURCES if a snapshot does not fit.
shardwire_code shardwire_session_publish(shardwire_session* session, const shardwire_catalog* held,
                                         const shardwire_publish_options* options, shardwire_publication** publication,
                                         shardwire_error** error);
/// Starts pulling everything that `wanted` lists from its publishers, which only have to have published.
/// Errors: INVALID_ARGUMENT if destination memory overlaps itself or memory that this member publishes, or is not
///         mapped writable. All other errors come out of shardwire_restore_wait().
shardwire_code shardwire_session_restore(shardwire_session* session, const shardwire_catalog* wanted,
                                         const shardwire_restore_options* options, shardwire_restore** restore,
                                         shardwire_error** error);
/// The collective form of publish and restore. Every member calls it with what it holds and wants; either catalog may be
/// empty. It begins when all members are in the call. Wanted memory may share bytes with held memory. Blocks until this
/// member has all that it wants. `result` may be NULL.
/// Errors: on every member, before any byte is written: OUT_OF_RESOURCES, naming tensors, bytes and budget, if staging
///         does not suffice. A failure on one member ends the exchange on all of them, by its deadline at the latest.
///         After an error of a later stage, bytes are unspecified wherever held and wanted memory overlap.
shardwire_code shardwire_session_exchange(shardwire_session* session, const shardwire_catalog* held,
                                          const shardwire_catalog* wanted, const shardwire_exchange_options* options,
                                          shardwire_exchange_result** result, shardwire_error** error);
/// As exchange, on a thread of the library. The memory stays borrowed until the exchange has ended.
/// Errors: INVALID_ARGUMENT while an earlier exchange that was started this way is running. All other errors come out
///         of shardwire_exchange_wait().
shardwire_code shardwire_session_start_exchange(shardwire_session* session, const shardwire_catalog* held,
                                                const shardwire_catalog* wanted,
                                                const shardwire_exchange_options* options,
                                                shardwire_exchange** exchange, shardwire_error** error);
/// Exchanges one small value per member, e.g. to agree on a step. Blocks until all members have called. Gives the values
/// of members 0..world_size-1; `values` may be NULL. A `name` may be used again once the call has returned on this member.
/// Errors: PEER_LOST naming a member that died, TIMED_OUT naming the members that did not call; the value of this one
///         then counts further on.
shardwire_code shardwire_session_gather(shardwire_session* session, const char* name, const void* value,
                                        size_t value_bytes, int64_t timeout_ns, shardwire_strings** values,
                                        shardwire_error** error);
/// Returns once all members have called it, as often as this one has.
/// Errors: TIMED_OUT naming the members that did not come, PEER_LOST naming one that died. This member has then not come:
///         the next call begins anew.
shardwire_code shardwire_session_barrier(shardwire_session* session, int64_t timeout_ns, shardwire_error** error);
/// The layouts of the catalogs of all members, as one side of a plan or the target of a case. Every member calls it with
/// what it holds or wants. A member without a layout rank passes a catalog without tensors, of any rank. Blocks until all
/// members have called; reads no memory. `layouts` may be NULL.
/// Errors: LAYOUT_MISMATCH on all members if two of them have one layout rank, or layouts over different numbers of
///         ranks; otherwise as barrier.
shardwire_code shardwire_session_gather_layouts(shardwire_session* session, const shardwire_catalog* catalog,
                                                int64_t timeout_ns, shardwire_job_layout** layouts,
                                                shardwire_error** error);

/// What the members of a job publish under one name at one step.
typedef struct shardwire_inventory shardwire_inventory;
typedef struct shardwire_publisher {
  int32_t rank;    ///< in the layouts of the publication
  int32_t member;  ///< of the session
} shardwire_publisher;
void shardwire_inventory_free(shardwire_inventory* inventory);
int64_t shardwire_inventory_step(const shardwire_inventory* inventory);
/// Ascending by rank; none if nobody publishes the name at the step.
const shardwire_publisher* shardwire_inventory_publishers(const shardwire_inventory* inventory, size_t* count);
/// Keys of the values that any of them publishes, ascending.
const shardwire_key* shardwire_inventory_values(const shardwire_inventory* inventory, size_t* count);
/// Ranks of the layouts without a publication at the step, ascending.
const int32_t* shardwire_inventory_absent(const shardwire_inventory* inventory, size_t* count);
/// Members that could still publish an absent rank at this step; none: the publishers are final.
const int32_t* shardwire_inventory_awaited(const shardwire_inventory* inventory, size_t* count);
/// Tensors, with layouts, by rank.
const shardwire_job_layout* shardwire_inventory_held(const shardwire_inventory* inventory);
/// `text` is one string: a case file (docs/case-format.md) of a restore of `target` from these publications, so that
/// `shardwire plan`, `perf` and `doctor --measure` repeat it. shardwire_session_gather_layouts() gives the target of a
/// job. With NULL as `target`, the ranks of the layouts restore what they publish. An absent rank is lost in the source.
/// Values are left out, and tensors that one side alone has. Layouts that case files have no words for stand there as
/// the boxes of each rank.
/// Errors: INVALID_ARGUMENT if the sides have no tensor in common, UNSUPPORTED for an empty name or state; for a `target`
///         as shardwire_planner_create().
shardwire_code shardwire_inventory_to_case(const shardwire_inventory* inventory, const shardwire_job_layout* target,
                                           shardwire_strings** text, shardwire_error** error);
/// What members publish under `name` at `step`; with SHARDWIRE_UNSET_STEP at the newest step at which no rank is
/// absent, else at the newest. Reads descriptions, no tensors.
/// Errors: LAYOUT_MISMATCH if publishers declare layouts over different numbers of ranks; TIMED_OUT naming the ranks
///         that did not describe themselves.
shardwire_code shardwire_session_inventory(shardwire_session* session, const char* name, int64_t step,
                                           int64_t timeout_ns, shardwire_inventory** inventory,
                                           shardwire_error** error);
/// Waits until every rank of the layouts is published at `step`, or the absent ones can appear no more. With
/// SHARDWIRE_UNSET_STEP until this holds for any step; the newest complete one then counts.
/// Errors: TIMED_OUT naming the absent ranks; STEP_MISMATCH if all publishers went on to later steps.
shardwire_code shardwire_session_await_step(shardwire_session* session, const char* name, int64_t step,
                                            int64_t timeout_ns, shardwire_inventory** inventory,
                                            shardwire_error** error);

SHARDWIRE_C_END
