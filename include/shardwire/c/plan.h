// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/layout.h"
#include "shardwire/c/tensor.h"

SHARDWIRE_C_BEGIN

/// One side of a restore, job-wide: sections of ranks that declare the same tensors. A rank is in at most one section;
/// a rank in none holds (or wants) nothing. The same key may stand in several sections (pipeline stages, experts).
/// Threads: functions that take a const handle may run concurrently.
typedef struct shardwire_job_layout shardwire_job_layout;
void shardwire_job_layout_free(shardwire_job_layout* job);
shardwire_code shardwire_job_layout_create(int32_t ranks, shardwire_job_layout** job, shardwire_error** error);
/// Adds a section and gives its index. `ranks` NULL with a `count` of 0 stands for all ranks of the job.
shardwire_code shardwire_job_layout_add_section(shardwire_job_layout* job, const int32_t* ranks, size_t count,
                                                size_t* section, shardwire_error** error);
/// Adds a tensor to a section. Its index in the section is its number in pieces and deliveries.
shardwire_code shardwire_job_layout_add(shardwire_job_layout* job, size_t section, const shardwire_tensor* tensor,
                                        const shardwire_layout* layout, shardwire_error** error);
/// Declares `alias` as a second name of the parameter `fqn` in a section.
shardwire_code shardwire_job_layout_alias(shardwire_job_layout* job, size_t section, const char* alias, const char* fqn,
                                          shardwire_error** error);
/// Adds a further holder of what `rank` holds, such as a spare: plans name it by the number rank_count + its index among
/// the copies. Source side only.
shardwire_code shardwire_job_layout_add_copy(shardwire_job_layout* job, int32_t rank, shardwire_error** error);
/// The same side after `lost` holders are gone. The first remaining copy of a lost rank takes its number.
shardwire_code shardwire_job_layout_without(const shardwire_job_layout* job, const int32_t* lost, size_t count,
                                            shardwire_job_layout** result, shardwire_error** error);
int32_t shardwire_job_layout_rank_count(const shardwire_job_layout* job);
size_t shardwire_job_layout_section_count(const shardwire_job_layout* job);
/// Ranks of a section, ascending; NULL if there is no such section.
const int32_t* shardwire_job_layout_ranks(const shardwire_job_layout* job, size_t section, size_t* count);
/// The rank that each further holder copies.
const int32_t* shardwire_job_layout_copies(const shardwire_job_layout* job, size_t* count);
size_t shardwire_job_layout_tensor_count(const shardwire_job_layout* job, size_t section);
/// A tensor of a section and its layout. `tensor` is initialised; either out parameter may be NULL.
shardwire_code shardwire_job_layout_tensor(const shardwire_job_layout* job, size_t section, size_t index,
                                           shardwire_tensor* tensor, const shardwire_layout** layout,
                                           shardwire_error** error);

/// Process and host of each rank. Affects which copies stay inside a process and which replicas are near, never which
/// bytes are needed.
typedef struct shardwire_topology {
  size_t size;
  uint32_t version;
  const int32_t* colocated;  ///< by target rank: the holder in the same process, -1 for none; NULL: the same number
  size_t colocated_count;
  const int32_t* source_host;  ///< host of each holder, as arbitrary numbers; NULL: unknown
  size_t source_host_count;
  const int32_t* target_host;
  size_t target_host_count;
} shardwire_topology;
void shardwire_topology_init(shardwire_topology* topology, size_t size);

/// Plans any number of target ranks of one pair of sides. A plan is a pure function of both sides. Tensors of one
/// element travel by value and are excluded.
/// Threads: use a planner and its plans from one thread at a time.
typedef struct shardwire_planner shardwire_planner;
void shardwire_planner_free(shardwire_planner* planner);
/// Keeps copies of both sides. `topology` may be NULL.
/// Errors: LAYOUT_MISMATCH if a tensor has another dtype or shape on the two sides, a layout does not fit its
///         tensor, or two sections disagree about a key; INVALID_ARGUMENT if the topology names other ranks.
shardwire_code shardwire_planner_create(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                        const shardwire_topology* topology, shardwire_replicas replicas,
                                        shardwire_planner** planner, shardwire_error** error);

/// A region of one wanted box, in global coordinates, that each of `holders` holds as a whole.
typedef struct shardwire_piece {
  uint32_t tensor;  ///< in the target rank's section
  shardwire_box box;
  const int32_t* holders;  ///< ascending
  size_t holder_count;
} shardwire_piece;
/// What one target rank needs: every wanted element is in exactly one piece or in exactly one gap. It keeps its
/// planner.
typedef struct shardwire_plan shardwire_plan;
void shardwire_plan_free(shardwire_plan* plan);
shardwire_code shardwire_planner_plan(shardwire_planner* planner, int32_t target, shardwire_plan** plan,
                                      shardwire_error** error);
size_t shardwire_plan_piece_count(const shardwire_plan* plan);
shardwire_code shardwire_plan_piece(const shardwire_plan* plan, size_t index, shardwire_piece* piece,
                                    shardwire_error** error);
/// Wanted regions that no rank holds.
const shardwire_gap* shardwire_plan_gaps(const shardwire_plan* plan, size_t* count);

/// A piece, or a part of one, with its source.
typedef struct shardwire_scheduled_piece {
  uint32_t piece;  ///< index in the plan
  int32_t source;
  uint32_t section;  ///< of the source, in the side that holds
  uint32_t held;     ///< tensor in the source's section
  uint32_t wave;     ///< pieces of a lower wave are posted first
  shardwire_box box;
} shardwire_scheduled_piece;
/// A source for each piece of a plan, in order of posting.
typedef struct shardwire_schedule shardwire_schedule;
void shardwire_schedule_free(shardwire_schedule* schedule);
/// Picks a source for each piece, excluding `lost` ranks. Errors: LAYOUT_MISMATCH listing every gap.
shardwire_code shardwire_plan_schedule(const shardwire_plan* plan, const int32_t* lost, size_t lost_count,
                                       shardwire_schedule** schedule, shardwire_error** error);
size_t shardwire_schedule_count(const shardwire_schedule* schedule);
shardwire_code shardwire_schedule_piece(const shardwire_schedule* schedule, size_t index,
                                        shardwire_scheduled_piece* piece, shardwire_error** error);

/// A region that a target reads from a source rank, from the source's side.
typedef struct shardwire_delivery {
  uint32_t held;  ///< tensor in the source's section
  int32_t target;
  uint32_t section;  ///< of the target, in the side that wants
  uint32_t wanted;   ///< tensor in the target's section
  shardwire_box box;
} shardwire_delivery;
typedef struct shardwire_deliveries shardwire_deliveries;
void shardwire_deliveries_free(shardwire_deliveries* deliveries);
const shardwire_delivery* shardwire_deliveries_data(const shardwire_deliveries* deliveries, size_t* count);
/// All regions read from `source` if every target rank follows its schedule; by target, then by its tensors.
shardwire_code shardwire_planner_deliveries(shardwire_planner* planner, int32_t source, const int32_t* lost,
                                            size_t lost_count, shardwire_deliveries** deliveries,
                                            shardwire_error** error);

/// One target rank's plan, and one source rank's deliveries, for callers that need a single one.
shardwire_code shardwire_plan_for_target(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                         int32_t target, shardwire_plan** plan, shardwire_error** error);
shardwire_code shardwire_plan_for_source(const shardwire_job_layout* from, const shardwire_job_layout* to,
                                         int32_t source, shardwire_deliveries** deliveries, shardwire_error** error);

/// Bytes between two ranks.
typedef struct shardwire_flow {
  int32_t source;
  int32_t target;
  uint64_t flow_bytes;
} shardwire_flow;
typedef struct shardwire_flows shardwire_flows;
void shardwire_flows_free(shardwire_flows* flows);
const shardwire_flow* shardwire_flows_data(const shardwire_flows* flows, size_t* count);
/// The bytes wanted by each target rank that each source rank holds; replicas count for each holder. By target, then by
/// source.
shardwire_code shardwire_planner_holdings(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                          shardwire_flows** flows, shardwire_error** error);
/// The bytes that each target rank reads from each source rank by its schedule, local ones too; by target, then by
/// source. Errors: LAYOUT_MISMATCH listing every gap.
shardwire_code shardwire_planner_flows(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                       shardwire_flows** flows, shardwire_error** error);

/// Sums over a whole job.
typedef struct shardwire_totals {
  size_t size;
  uint32_t version;
  uint64_t needed_bytes;
  uint64_t local_bytes;
  uint64_t remote_bytes;
  uint64_t max_egress_bytes;   ///< most remote bytes out of one source rank
  uint64_t max_ingress_bytes;  ///< most remote bytes into one target rank
  uint64_t pieces;
  int64_t runs;  ///< contiguous on both sides
  uint64_t gaps;
} shardwire_totals;
void shardwire_totals_init(shardwire_totals* totals, size_t size);
/// Sums over all target ranks' schedules. Errors: LAYOUT_MISMATCH listing every gap.
shardwire_code shardwire_planner_totals(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                        shardwire_totals* totals, shardwire_error** error);
/// The same sums over the given target ranks. Counts gaps instead of failing.
shardwire_code shardwire_planner_tally(shardwire_planner* planner, const int32_t* targets, size_t count,
                                       shardwire_totals* totals, shardwire_error** error);

/// The share of one target rank in these sums.
typedef struct shardwire_target_totals {
  int32_t target;
  uint64_t needed_bytes;
  uint64_t local_bytes;  ///< of these, read inside the target's own process
  uint64_t pieces;
  int64_t runs;
} shardwire_target_totals;
/// One row for each target rank, ascending.
typedef struct shardwire_targets shardwire_targets;
void shardwire_targets_free(shardwire_targets* targets);
const shardwire_target_totals* shardwire_targets_data(const shardwire_targets* targets, size_t* count);
/// As shardwire_planner_totals().
shardwire_code shardwire_planner_targets(shardwire_planner* planner, const int32_t* lost, size_t lost_count,
                                         shardwire_targets** targets, shardwire_error** error);
/// Visits the row of each given target rank and its bytes by source rank, for jobs too large to keep in memory. Calls
/// `visit` on this thread, one target rank after another; it must not use the planner.
shardwire_code shardwire_planner_each_target(shardwire_planner* planner, const int32_t* targets, size_t count,
                                             void (*visit)(void* context, const shardwire_target_totals* totals,
                                                           const shardwire_flow* flows, size_t flow_count),
                                             void* context, shardwire_error** error);

/// A scheduled piece in a listing of a whole job.
typedef struct shardwire_transfer {
  shardwire_key key;
  int32_t source;
  int32_t target;
  shardwire_box box;
  uint64_t transfer_bytes;
} shardwire_transfer;
/// Visit every scheduled piece, or every gap, of the given target ranks, for jobs too large to keep in memory. Call
/// `visit` on this thread, one target rank after another; it must not use the planner.
shardwire_code shardwire_planner_each_transfer(shardwire_planner* planner, const int32_t* targets, size_t count,
                                               void (*visit)(void* context, const shardwire_transfer* transfer),
                                               void* context, shardwire_error** error);
shardwire_code shardwire_planner_each_gap(shardwire_planner* planner, const int32_t* targets, size_t count,
                                          void (*visit)(void* context, const shardwire_gap* gap), void* context,
                                          shardwire_error** error);

/// The process in which each target rank should run so that the fewest bytes cross between processes: the exact
/// optimum. `holdings` is what shardwire_planner_holdings() gives; `lost` lists source ranks whose processes are gone.
/// Writes `targets` entries to `process_of_target`: the source rank whose process takes the target rank, -1 for a new
/// process. Errors: INVALID_ARGUMENT for a rank out of range.
shardwire_code shardwire_best_assignment(int32_t sources, int32_t targets, const shardwire_flow* holdings,
                                         size_t holding_count, const int32_t* lost, size_t lost_count,
                                         int32_t* process_of_target, shardwire_error** error);

SHARDWIRE_C_END
