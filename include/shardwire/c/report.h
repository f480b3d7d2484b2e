// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "shardwire/c/error.h"

SHARDWIRE_C_BEGIN

/// State of a running restore or exchange. Callbacks receive it; `size` and `version` are the library's, so a program
/// may read later fields only within `size`.
typedef struct shardwire_progress {
  size_t size;
  uint32_t version;
  /// "plan", "bind", "move", "verify", "commit", then "done". "stopping" while bytes under way end, before another plan or
  /// the end. "failed" at the end of what has failed, or was cancelled.
  const char* stage;
  uint64_t done_bytes;
  uint64_t total_bytes;
} shardwire_progress;

/// Figures of one restore: moved + local = needed + overread + resent. The stages follow one another and sum to
/// `wall_seconds`.
typedef struct shardwire_figures {
  size_t size;
  uint32_t version;
  uint64_t needed_bytes;    ///< that this rank wanted
  uint64_t moved_bytes;     ///< payload that crossed between ranks
  uint64_t local_bytes;     ///< payload copied inside this process
  uint64_t overread_bytes;  ///< moved beyond what was needed
  uint64_t resent_bytes;    ///< moved again after a fault
  double wall_seconds;
  double join_seconds;  ///< joining the session; 0 after the first restore
  double plan_seconds;  ///< waiting for publications, fetching descriptions, planning
  double bind_seconds;  ///< connecting to the peers of the plan
  double move_seconds;
  double verify_seconds;
  double commit_seconds;
  uint64_t rounds;        ///< collective rounds, in exchanges that use the collective method
  uint64_t rounds_bytes;  ///< received by this rank in them
  double rounds_seconds;
  uint64_t staging_budget_bytes;
  uint64_t staging_peak_bytes;  ///< maximum staging in use at once in this session
  uint64_t registered_bytes;    ///< memory registered or allocated as arenas in this session
  double registration_seconds;
  double digest_seconds;  ///< processor time of digests on this side, inside `move_seconds` and `verify_seconds`
  const char* transport;  ///< names and loaded versions of the open transports
} shardwire_figures;
void shardwire_figures_init(shardwire_figures* figures, size_t size);

/// Predicted and measured figures of one transfer method.
typedef struct shardwire_method_figures {
  size_t size;
  uint32_t version;
  uint64_t moved_bytes;  ///< for sieved reads including the bytes of gaps
  uint64_t runs;         ///< contiguous on both sides
  double predicted_seconds;
  double measured_seconds;  ///< time during which at least one of its operations was in flight
} shardwire_method_figures;
void shardwire_method_figures_init(shardwire_method_figures* figures, size_t size);

/// Bytes from one source rank over one path.
typedef struct shardwire_peer_figures {
  size_t size;
  uint32_t version;
  int32_t rank;  ///< in the source layout
  uint64_t moved_bytes;
  const char* path;                           ///< "local" or "<transport>/<method>"
  const char* device;                         ///< for people: device or protocol behind the path
  shardwire_fallback_reason fallback_reason;  ///< why no better path was taken; of several, one that can be removed
  const char* fallback_detail;                ///< for people: all reasons; "" if there is none
  double predicted_seconds;
  double measured_seconds;  ///< from the first request for these bytes until the last of them was in place
} shardwire_peer_figures;
void shardwire_peer_figures_init(shardwire_peer_figures* figures, size_t size);

/// A source that a restore has given up.
typedef struct shardwire_lost_source {
  size_t size;
  uint32_t version;
  int32_t rank;  ///< in the source layout
  shardwire_code
      reason;       ///< SHARDWIRE_PEER_LOST; SHARDWIRE_WITHDRAWN if the source took its publication back; or another
  const char* why;  ///< the same for people
  double after_seconds;      ///< from the call of the restore to the decision
  uint64_t boxes_replanned;  ///< planned anew because of the loss; 0 if nothing had to be, or no other source had them
  uint64_t resent_bytes;     ///< of these boxes, bytes that had arrived and were moved a second time
} shardwire_lost_source;
void shardwire_lost_source_init(shardwire_lost_source* source, size_t size);

/// Report of a restore or exchange.
typedef struct shardwire_report shardwire_report;
void shardwire_report_free(shardwire_report* report);
/// Figures of the restore that failed, up to its end; in an exchange, of the step that failed on this member. NULL for other
/// errors. Valid as long as the error.
const shardwire_report* shardwire_error_report(const shardwire_error* error);
shardwire_code shardwire_report_copy(const shardwire_report* report, shardwire_report** copy, shardwire_error** error);
/// Adds a later restore of the same session: bytes, methods, seconds and peers are summed, and lost sources are
/// appended.
shardwire_code shardwire_report_add(shardwire_report* report, const shardwire_report* next, shardwire_error** error);
shardwire_code shardwire_report_figures(const shardwire_report* report, shardwire_figures* figures,
                                        shardwire_error** error);
/// The row of `method`: SHARDWIRE_METHOD_LOCAL .. SHARDWIRE_METHOD_COLLECTIVE.
shardwire_code shardwire_report_method(const shardwire_report* report, shardwire_method method,
                                       shardwire_method_figures* figures, shardwire_error** error);
/// Peers ascend by rank, one for each path.
size_t shardwire_report_peer_count(const shardwire_report* report);
shardwire_code shardwire_report_peer(const shardwire_report* report, size_t index, shardwire_peer_figures* figures,
                                     shardwire_error** error);
/// Keys wanted with SHARDWIRE_ABSENT_SKIP, or SHARDWIRE_ABSENT_ZERO, that no source has.
size_t shardwire_report_skipped_count(const shardwire_report* report);
shardwire_code shardwire_report_skipped(const shardwire_report* report, size_t index, shardwire_key* key,
                                        shardwire_error** error);
size_t shardwire_report_zeroed_count(const shardwire_report* report);
shardwire_code shardwire_report_zeroed(const shardwire_report* report, size_t index, shardwire_key* key,
                                       shardwire_error** error);
/// The step of the sources. False before they are chosen.
bool shardwire_report_step(const shardwire_report* report, int64_t* step);
/// Newer steps that SHARDWIRE_STEP_NEWEST_COMPLETE has passed over, newest first, and the wanted boxes of each that no source
/// held. Pointers stay valid as long as the report.
size_t shardwire_report_incomplete_count(const shardwire_report* report);
shardwire_code shardwire_report_incomplete(const shardwire_report* report, size_t index, int64_t* step,
                                           size_t* gap_count, shardwire_error** error);
shardwire_code shardwire_report_incomplete_gap(const shardwire_report* report, size_t index, size_t gap_index,
                                               shardwire_gap* gap, shardwire_error** error);
/// Boxes that were not what their sources had published (shardwire_publish_options.digest), in the order in which they were
/// found. `source`: a rank of the source layout. Pointers stay valid as long as the report.
size_t shardwire_report_corrupt_count(const shardwire_report* report);
shardwire_code shardwire_report_corrupt(const shardwire_report* report, size_t index, shardwire_key* key,
                                        shardwire_box* box, int32_t* source, shardwire_error** error);

/// Sources that were lost, in the order of the losses.
size_t shardwire_report_lost_count(const shardwire_report* report);
shardwire_code shardwire_report_lost(const shardwire_report* report, size_t index, shardwire_lost_source* source,
                                     shardwire_error** error);

/// Totals of a session so far, as a source and as a target.
typedef struct shardwire_usage {
  size_t size;
  uint32_t version;
  uint64_t serving_budget_bytes;  ///< staging that serves readers
  uint64_t serving_peak_bytes;    ///< maximum in use at once
  uint64_t registered_bytes;      ///< memory registered or allocated as arenas
  uint64_t pinned_bytes;          ///< staging for copies between devices and pageable host memory
  double registration_seconds;
} shardwire_usage;
void shardwire_usage_init(shardwire_usage* usage, size_t size);

SHARDWIRE_C_END
