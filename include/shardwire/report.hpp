// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/error.hpp"
#include "shardwire/export.hpp"
#include "shardwire/tensor.hpp"
#include "shardwire/types.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// Seconds of one restore. The stages follow one another without overlap and sum to `wall`.
struct StageSeconds {
  double wall = 0;
  double join = 0;  ///< joining the session; 0 after the first restore
  double plan = 0;  ///< waiting for publications, fetching manifests, planning
  double bind = 0;  ///< connecting to the peers of the plan, leases, region handles
  double move = 0;
  double verify = 0;  ///< check after read (generation), digests where asked, replicas where asked
  double commit = 0;

  StageSeconds& operator+=(const StageSeconds& next);
};

/// Predicted and measured figures of one method.
struct MethodReport {
  ByteCount bytes = 0;  ///< payload; for sieved_read with the bytes of gaps, which RestoreReport::overread_bytes counts
  ByteCount runs = 0;   ///< contiguous on both sides
  double predicted_seconds = 0;  ///< by the cost model, if it had the machine to itself
  double measured_seconds = 0;   ///< time during which at least one of its operations was in flight
};

/// One row per Method, in enum order. Every report of methods uses this table.
class MethodTable {
 public:
  MethodReport& operator[](Method method) { return rows_[static_cast<std::size_t>(method)]; }
  const MethodReport& operator[](Method method) const { return rows_[static_cast<std::size_t>(method)]; }
  /// Calls visit(Method, MethodReport&) for each row.
  template <typename Visit>
  void each(Visit visit) {
    for (std::size_t i = 0; i < method_count; ++i) visit(static_cast<Method>(i), rows_[i]);
  }
  template <typename Visit>
  void each(Visit visit) const {
    for (std::size_t i = 0; i < method_count; ++i) visit(static_cast<Method>(i), rows_[i]);
  }
  /// Adds the figures of later work, seconds included.
  MethodTable& operator+=(const MethodTable& next);

 private:
  std::array<MethodReport, method_count> rows_{};
};

struct PeerReport {
  Rank rank{};  ///< in the source layout
  ByteCount bytes = 0;
  std::string path;    ///< "local" or "<transport>/<method>"
  std::string device;  ///< for people: device or protocol behind the path
  /// Why they took no better path. If several reasons came together, one that somebody can remove, if there is any.
  FallbackReason fallback_reason{};
  std::string fallback_detail{};  ///< for people: all reasons; empty if there is none
  double predicted_seconds = 0;   ///< of these bytes by the cost model, if they had the machine to themselves
  /// From the first request for these bytes until the last of them was in place. Plans and attempts that follow one another add
  /// their times, as they add their bytes. Sources deliver at the same time, so the rows may sum to more than the stage `move`.
  double measured_seconds = 0;
};

/// A source that a restore has given up.
struct LostSource {
  Rank rank{};               ///< in the source layout
  ErrorCode reason{};        ///< peer_lost; withdrawn if the source took its publication back; or another failure
  std::string why{};         ///< the same for people
  double after_seconds = 0;  ///< from the call of the restore to the decision
  /// Boxes that the restore planned anew because of the loss. 0 if the memory of the source could be read on, and if no
  /// other source had the boxes, so that the restore ended.
  std::uint64_t boxes_replanned = 0;
  ByteCount resent_bytes = 0;  ///< of these boxes, bytes that had arrived and were moved a second time
};

/// A box that was not what its source had published, see PublishOptions::digest. None of its bytes is committed.
struct CorruptBox {
  std::string fqn;
  std::string state;
  Box box;        ///< global coordinates
  Rank source{};  ///< in the source layout
  bool operator==(const CorruptBox&) const = default;
};

/// A step that StepRule::newest_complete has passed over: it comes before the one that was taken.
struct IncompleteStep {
  std::int64_t step = 0;
  /// Wanted boxes that no source held. Empty: its sources did not describe themselves, or what they have does not fit, as a
  /// warning in the log says.
  std::vector<Gap> gaps;
};

/// Figures of one restore. Invariant: moved_bytes + local_bytes == needed_bytes + overread_bytes + resent_bytes. With
/// RestoreOptions::bind_only the report shows the intended transfers: `needed_bytes`, and the bytes, runs and predicted
/// seconds of methods and peers. Nothing is moved, and only the stages join, plan, bind and verify take time.
struct RestoreReport {
  ByteCount needed_bytes = 0;    ///< bytes that the target rank wanted
  ByteCount moved_bytes = 0;     ///< payload that crossed between ranks
  ByteCount local_bytes = 0;     ///< payload copied inside this process
  ByteCount overread_bytes = 0;  ///< bytes moved beyond what was needed
  ByteCount resent_bytes = 0;    ///< bytes moved again after a fault
  MethodTable methods;
  std::uint64_t rounds = 0;    ///< collective rounds, in exchanges that use the collective method
  ByteCount rounds_bytes = 0;  ///< bytes received by this rank in collective rounds
  double rounds_seconds = 0;   ///< duration of the collective rounds, including the wait for other members
  StageSeconds seconds;
  ByteCount staging_budget_bytes = 0;
  ByteCount staging_peak_bytes = 0;  ///< maximum staging in use at once in this session, as source and as target
  ByteCount registered_bytes = 0;    ///< memory registered or allocated as arenas in this session
  double registration_seconds = 0;
  double digest_seconds = 0;         ///< processor time of digests on this side: Verify::digest mostly inside `move`,
                                     ///< Replicas::compare inside `verify`
  std::string transport;             ///< names and loaded versions of the open transports
  std::vector<PeerReport> peers;     ///< ascending by rank, one line per (peer, path)
  std::optional<std::int64_t> step;  ///< of the sources; none before they are chosen
  std::vector<IncompleteStep> incomplete_steps;  ///< passed over for `step`, the highest first
  std::vector<TensorKey> skipped;                ///< elements or values wanted with Absent::skip that no source has
  std::vector<TensorKey> zeroed;                 ///< the same with Absent::zero
  std::vector<LostSource> lost;                  ///< in the order of the losses
  /// In the order in which they were found: a box that differs twice is listed twice.
  std::vector<CorruptBox> corrupt;

  /// Adds a later restore of the same session: bytes, methods, seconds and peers are summed, lost sources are
  /// appended, and the staging peak is the larger one. Figures of the session as a whole, and the step, are taken from `next`.
  RestoreReport& operator+=(const RestoreReport& next);
};

/// Totals of a session so far, as a source and as a target.
struct SessionUsage {
  ByteCount serving_budget_bytes = 0;  ///< staging that serves readers: SessionOptions::staging_bytes
  ByteCount serving_peak_bytes = 0;    ///< maximum in use at once
  ByteCount registered_bytes = 0;      ///< memory registered or allocated as arenas
  double registration_seconds = 0;
  /// Staging for copies between devices and pageable host memory: at most 8 MiB, and no more than serving_budget_bytes.
  ByteCount pinned_bytes = 0;
};

/// State of a running restore.
struct Progress {
  /// "plan", "bind", "move", "verify", "commit", then "done". "stopping" while bytes under way end, before another plan or
  /// the end. "failed" at the end of a restore that has failed, or was cancelled.
  const char* stage = "";
  ByteCount done_bytes = 0;
  ByteCount total_bytes = 0;
};

}  // namespace shardwire
SHARDWIRE_API_END
