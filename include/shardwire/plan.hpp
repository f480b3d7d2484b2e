// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "shardwire/error.hpp"
#include "shardwire/export.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/tensor.hpp"

SHARDWIRE_API_BEGIN
namespace shardwire {

/// A tensor and the rule that spreads it over the ranks of one side.
struct TensorLayout {
  TensorSpec spec;
  Layout layout;

  bool operator==(const TensorLayout&) const = default;
};

class SHARDWIRE_LOCAL OtherHolders;

/// The declaration shared by every rank with the same catalog: the tensors in a fixed order (TensorId is the index),
/// the number of ranks in their layouts, and the alternative names of parameters. Immutable once shared.
struct Manifest {
  int ranks = 0;
  std::vector<TensorLayout> tensors;
  std::vector<Alias> aliases{};  ///< ascending by alias, each once; the fqn of an alias is never itself an alias

  bool operator==(const Manifest&) const = default;
};

/// Ranks that share one manifest.
struct Section {
  std::shared_ptr<const Manifest> manifest;  // owners: every JobLayout and Plan that uses it; immutable
  std::vector<Rank> ranks;                   ///< ascending, no repeats
};

/// One side of a restore, job-wide. A rank is in at most one section; a rank in none holds (or wants) nothing. The same
/// key may stand in several sections (pipeline stages, experts).
struct JobLayout {
  int ranks = 0;
  std::vector<Section> sections;
  /// Source side only. Further holders of whole ranks (spares, buddies): holder `ranks + i` holds what rank `copies[i]`
  /// holds. A plan names holders: each of them is a Rank in holder sets, schedules, lists of lost ranks and Topology.
  std::vector<Rank> copies{};

  /// All of 0..ranks-1 declare the same tensors.
  static JobLayout uniform(int ranks, std::vector<TensorLayout> tensors);
  /// Ranks and copies.
  [[nodiscard]] int holders() const { return ranks + static_cast<int>(copies.size()); }
  /// The rank that a holder holds the boxes of. Requires: the holder exists.
  [[nodiscard]] Rank rank_of(Rank holder) const;
  /// The same side after `lost` holders are gone. The first remaining copy of a lost rank takes its number; the other
  /// remaining copies keep their order.
  [[nodiscard]] JobLayout without(std::span<const Rank> lost) const;
};

/// Process and host of each rank. Affects which copies stay inside a process and which replicas are near, never which
/// bytes are needed.
struct Topology {
  /// By target rank: the holder in the same process, -1 for none. Empty: target rank i is source rank i.
  std::vector<std::int32_t> colocated{};
  /// Host of each holder and of each target rank, as arbitrary numbers. Empty: unknown; no replica is then nearer than
  /// another.
  std::vector<std::int32_t> source_host{};
  std::vector<std::int32_t> target_host{};
};

/// Choice between ranks that hold the same elements.
enum class Replicas : std::uint8_t {
  /// Replicas are equal: an element comes from the target's own process, else from a holder on its host, else from any
  /// holder, so that the readers of a box spread evenly over its holders.
  spread,
  /// Replicas may differ: an element comes from the lowest holder, for every reader alike.
  first,
  /// Replicas have to be equal: planned as `first`. A restore also compares what it has read with every other holder.
  compare,
};

/// A region of one wanted box that each rank of `holder_sets[holders]` holds as a whole. Tensors that are split alike
/// share their regions and holder sets.
struct Piece {
  TensorId tensor{};          ///< in the target rank's manifest
  std::uint32_t region = 0;   ///< index into Plan::regions
  std::uint32_t holders = 0;  ///< index into Plan::holder_sets
};

/// The pieces that one target rank needs, and their holders. Order and choice of source are the schedule's, which is
/// remade without a new plan when a holder is lost.
struct Plan {
  Rank target{};
  std::shared_ptr<const Manifest> wanted;      ///< null if the target rank wants nothing; owners as in Section
  std::vector<Piece> pieces;                   ///< by tensor, then by wanted box, then by offset
  std::vector<Box> regions;                    ///< global coordinates, never empty
  std::vector<std::vector<Rank>> holder_sets;  ///< each ascending
  std::vector<Gap> gaps;                       ///< wanted regions that no rank holds

  [[nodiscard]] const Box& box(const Piece& piece) const { return regions[piece.region]; }
};

/// A piece, or a part of one, with its source.
struct ScheduledPiece {
  std::uint32_t piece = 0;   ///< index into Plan::pieces
  std::uint32_t region = 0;  ///< index into Schedule::regions; the parts of one piece cover it exactly
  Rank source{};
  std::uint32_t section = 0;  ///< of the source's rank, in the `from` side
  TensorId held{};            ///< in the source's manifest
  std::uint32_t wave = 0;     ///< pieces of a lower wave are posted first
};

/// A source for each piece of a plan, in order of posting. A large piece with several holders may be read in parts from
/// more than one of them.
struct Schedule {
  std::vector<ScheduledPiece> items;
  std::vector<Box> regions;  ///< global coordinates, never empty

  [[nodiscard]] const Box& box(const ScheduledPiece& item) const { return regions[item.region]; }
};

/// A region that a target reads from a source rank, from the source's side.
struct Delivery {
  TensorId held{};  ///< in the source rank's manifest
  Box box;          ///< global coordinates
  Rank target{};
  std::uint32_t section = 0;  ///< of the target, in the `to` side
  TensorId wanted{};          ///< in the target rank's manifest
};

/// Bytes between two ranks.
struct Flow {
  Rank source{};
  Rank target{};
  ByteCount bytes = 0;

  bool operator==(const Flow&) const = default;
};

struct TargetTotals {
  ByteCount needed = 0;
  ByteCount local = 0;       ///< of these, read inside the target's own process
  std::uint64_t pieces = 0;  ///< scheduled ones
  ElementCount runs = 0;     ///< contiguous on both sides
};

/// A piece, or a part of one, with its source, in a listing of a whole job. Borrows from the planner.
struct PlannedTransfer {
  const TensorSpec& tensor;
  Rank source{};
  Rank target{};
  const Box& box;  ///< global coordinates, never empty
  ByteCount bytes = 0;
};

/// Visitors for jobs too large to keep in memory: one target rank's contribution to the totals with its flows by
/// source; a piece; a gap. They must not call the planner that calls them.
using OnTarget = std::function<void(Rank, const TargetTotals&, std::span<const Flow>)>;
using OnTransfer = std::function<void(const PlannedTransfer&)>;
using OnGap = std::function<void(const Gap&)>;

/// Sums over a whole job.
struct JobTotals {
  ByteCount needed = 0;
  ByteCount local = 0;
  ByteCount remote = 0;
  ByteCount max_egress = 0;   ///< most remote bytes out of one source rank
  ByteCount max_ingress = 0;  ///< most remote bytes into one target rank
  std::uint64_t pieces = 0;
  ElementCount runs = 0;
  std::uint64_t gaps = 0;             ///< wanted regions without a holder, which no sum includes
  std::vector<TargetTotals> targets;  ///< by target rank
  std::vector<Flow> flows;            ///< as scheduled, local ones too; by target, then by source
};

/// Plans any number of target ranks of one (from, to) pair. Tensors of the same shape and layouts form a class, which
/// is analysed once. One-element tensors travel by value and are excluded.
/// Threads: one thread at a time.
/// Errors: the constructor throws Error{layout_mismatch} if a tensor has different dtype or shape on the two sides, a
///         layout does not fit its tensor, or two sections disagree about a key; and Error{invalid_argument} if the
///         topology or a copy names other ranks, or the `to` side has copies.
class Planner {
 public:
  Planner(JobLayout from, JobLayout to, Topology topology = {}, Replicas replicas = Replicas::spread);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// Proves the cover: in the result every wanted element is in exactly one piece or in exactly one gap, and every
  /// piece lies inside a box of each of its holders.
  /// Cost: O(pieces of this rank) once its tensors are sorted into classes.
  [[nodiscard]] Plan plan(Rank target);
  [[nodiscard]] const JobLayout& from() const;
  [[nodiscard]] const JobLayout& to() const;

  /// Picks a source for each piece, excluding `lost` ranks, as `replicas` says. A pure function of (layouts, topology,
  /// replicas, lost, target), where the readers are the ranks of the target's section.
  /// Errors: throws Error{layout_mismatch} listing every gap, including those that `lost` opens.
  [[nodiscard]] Schedule schedule(const Plan& plan, std::span<const Rank> lost = {});
  /// All regions read from `source` when every target rank follows its schedule: the same plan from the source's side.
  /// By target, then by its tensors. Cost: O(pieces that overlap the boxes of `source`).
  [[nodiscard]] std::vector<Delivery> deliveries(Rank source, std::span<const Rank> lost = {});

  /// Sums over all target ranks' schedules, computed per class without listing pieces.
  /// Errors: throws Error{layout_mismatch} listing every gap.
  [[nodiscard]] JobTotals totals(std::span<const Rank> lost = {});
  /// The same sums over the given target ranks. Gaps are counted, not thrown. Calls `on_target`, if given, for each
  /// target rank with its flows. Memory grows with ranks and tensors, not with pieces, flows or gaps.
  /// Errors: throws Error{invalid_argument} for a rank that is no target rank, and for sums beyond 64 bits.
  [[nodiscard]] JobTotals tally(std::span<const Rank> targets, const OnTarget& on_target = {});
  /// Visits every piece of the given target ranks' schedules, one target rank after another, each in its order of
  /// posting; in any order for a target rank with more than 2^16 regions or 2^20 pieces. Skips regions without a
  /// holder. Memory as for tally().
  /// Errors: as for tally().
  void each_transfer(std::span<const Rank> targets, const OnTransfer& on_transfer);
  /// Visits every wanted region of the given target ranks that no rank holds, in the same way.
  void each_gap(std::span<const Rank> targets, const OnGap& on_gap);
  /// The bytes wanted by each target rank that each source rank holds; replicas count for each holder. Input of an
  /// assignment of target ranks to processes. By target, then by source.
  [[nodiscard]] std::vector<Flow> holdings(std::span<const Rank> lost = {});

 private:
  friend class OtherHolders;  // of the library
  struct SHARDWIRE_LOCAL State;
  std::unique_ptr<State> state_;
};

/// One target rank's plan, for callers that need a single plan. Errors: as Planner.
Plan plan(const JobLayout& from, const JobLayout& to, Rank target);
/// One source rank's deliveries to all target ranks. Errors: as Planner.
std::vector<Delivery> plan_for_source(const JobLayout& from, const JobLayout& to, Rank source);

/// Throws Error{layout_mismatch} with all gaps if there are any; the message names fqn, state, box and rank of the
/// first few and counts the rest.
void require_no_gaps(std::vector<Gap> gaps);

/// Number of contiguous runs usable on both sides when `box` is copied from `held` to `wanted`: its volume divided by
/// that of the dims that are contiguous in both, in any order of dims.
/// Requires: both boxes contain `box`.
ElementCount runs_of(const Box& box, const PlacedBox& held, const PlacedBox& wanted);

}  // namespace shardwire
SHARDWIRE_API_END
