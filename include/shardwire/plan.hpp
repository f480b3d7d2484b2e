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

/// What every rank that declares the same catalog declares: the tensors in a fixed order (TensorId is the index), how
/// many ranks their layouts speak of, and which names mean the same parameter. Immutable once shared.
struct Manifest {
  int ranks = 0;
  std::vector<TensorLayout> tensors;
  std::vector<Alias> aliases{};  ///< ascending by alias, each once; no fqn of one is the alias of another

  bool operator==(const Manifest&) const = default;
};

/// Ranks that share one manifest.
struct Section {
  std::shared_ptr<const Manifest> manifest;  // owners: every JobLayout and Plan that speaks of it; immutable
  std::vector<Rank> ranks;                   ///< ascending, no repeats
};

/// One side of a restore, job-wide. A rank is in at most one section; a rank in none holds (or wants) nothing. The same
/// key may stand in several sections (pipeline stages, experts).
struct JobLayout {
  int ranks = 0;
  std::vector<Section> sections;

  /// All of 0..ranks-1 declare the same tensors.
  static JobLayout uniform(int ranks, std::vector<TensorLayout> tensors);
  /// The same side after `lost` ranks are gone.
  [[nodiscard]] JobLayout without(std::span<const Rank> lost) const;
};

/// Where ranks run. It decides which copies stay inside a process and which replica is near, never which bytes are
/// needed.
struct Topology {
  /// By target rank: the source rank in whose process it runs, -1 for none. Empty: target rank i is source rank i.
  std::vector<std::int32_t> colocated{};
  /// Host of each rank, any numbers. Empty: unknown, then no replica is nearer than another.
  std::vector<std::int32_t> source_host{};
  std::vector<std::int32_t> target_host{};
};

/// A region that one wanted box needs and that each of `holder_sets[holders]` holds whole. Tensors that are cut alike
/// share their regions and holder sets.
struct Piece {
  TensorId tensor{};          ///< in the target rank's manifest
  std::uint32_t region = 0;   ///< index into Plan::regions
  std::uint32_t holders = 0;  ///< index into Plan::holder_sets
};

/// Which pieces one target rank needs and who holds them. Says nothing about order or choice of source: that is the
/// schedule, which is remade without a new plan when a holder is lost.
struct Plan {
  Rank target{};
  std::shared_ptr<const Manifest> wanted;      ///< null when the target rank wants nothing; owners as in Section
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
  std::uint32_t section = 0;  ///< of the source, in the `from` side
  TensorId held{};            ///< in the source's manifest
  std::uint32_t wave = 0;     ///< pieces of a lower wave are posted first
};

/// The plan made concrete: a source for each piece, in the order of posting. A large piece with several holders may be
/// read in parts from more than one of them.
struct Schedule {
  std::vector<ScheduledPiece> items;
  std::vector<Box> regions;  ///< global coordinates, never empty

  [[nodiscard]] const Box& box(const ScheduledPiece& item) const { return regions[item.region]; }
};

/// What a source rank is read for, seen from its side.
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

/// A piece, or a part of one, with its source, as a list of a whole job shows it. Borrows from the planner.
struct PlannedTransfer {
  const TensorSpec& tensor;
  Rank source{};
  Rank target{};
  const Box& box;  ///< global coordinates, never empty
  ByteCount bytes = 0;
};

/// Take what is shown of a job that is too large to be kept: what one target rank adds to the totals, with its flows by
/// source; a piece; a gap. They must not call the planner that shows it.
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
  std::uint64_t gaps = 0;             ///< wanted regions without a holder, which are in none of the sums
  std::vector<TargetTotals> targets;  ///< by target rank
  std::vector<Flow> flows;            ///< as scheduled, local ones too; by target, then by source
};

/// Plans any number of target ranks of one (from, to) pair. Tensors of the same shape and layouts form a class and are
/// looked at once. One-element tensors travel by value and are left out.
/// Threads: one thread at a time.
/// Errors: the constructor throws Error{layout_mismatch} when a tensor has different dtype or shape on the two sides,
///         or a layout does not fit its tensor; when two sections disagree about a key; and Error{invalid_argument} when
///         the topology speaks of other ranks.
class Planner {
 public:
  Planner(JobLayout from, JobLayout to, Topology topology = {});
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// Proves the cover: in the result every wanted element is in exactly one piece or in exactly one gap, and every piece
  /// lies inside a box of each of its holders.
  /// Cost: O(pieces of this rank) once its tensors are sorted into classes.
  [[nodiscard]] Plan plan(Rank target);
  [[nodiscard]] const JobLayout& from() const;
  [[nodiscard]] const JobLayout& to() const;

  /// Picks a source for each piece, without the `lost` ones: the target's own process where it holds the piece, else a
  /// holder on its host, else one such that all readers of a replicated box spread evenly over its holders. A pure
  /// function of (layouts, topology, lost, target), where the readers are the ranks of the target's section.
  /// Errors: throws Error{layout_mismatch} listing every gap, also those that `lost` opens.
  [[nodiscard]] Schedule schedule(const Plan& plan, std::span<const Rank> lost = {});
  /// All that is read from `source` when every target rank follows its schedule: the same plan from the other side.
  /// By target, then by its tensors. Cost: O(pieces that overlap what `source` holds).
  [[nodiscard]] std::vector<Delivery> deliveries(Rank source, std::span<const Rank> lost = {});

  /// Sums over all target ranks' schedules, worked out per class: no single piece is listed.
  /// Errors: throws Error{layout_mismatch} listing every gap.
  [[nodiscard]] JobTotals totals(std::span<const Rank> lost = {});
  /// The same sums over these target ranks, without a list: gaps are counted, not thrown, target ranks and their flows are
  /// shown to `on_target` where it is given. Memory grows with ranks and tensors, not with pieces, flows or gaps.
  /// Errors: throws Error{invalid_argument} for a rank that is no target rank, and for sums beyond 64 bits.
  [[nodiscard]] JobTotals tally(std::span<const Rank> targets, const OnTarget& on_target = {});
  /// Shows every piece of these target ranks' schedules, one target rank after another, each in its order of posting; one
  /// that needs more than 2^16 regions, or 2^20 pieces, in any order. What has no holder is left out. Memory as for tally().
  /// Errors: as for tally().
  void each_transfer(std::span<const Rank> targets, const OnTransfer& on_transfer);
  /// Shows every wanted region of these target ranks that no rank holds, in the same way.
  void each_gap(std::span<const Rank> targets, const OnGap& on_gap);
  /// How many of the bytes that each target rank wants each source rank holds, replicas counted with each holder: what
  /// an assignment of target ranks to processes is judged by. By target, then by source.
  [[nodiscard]] std::vector<Flow> holdings(std::span<const Rank> lost = {});

 private:
  struct SHARDWIRE_LOCAL State;
  std::unique_ptr<State> state_;
};

/// One target rank's plan, for callers that need a single one. Errors: as Planner.
Plan plan(const JobLayout& from, const JobLayout& to, Rank target);
/// One source rank's side of everybody's plans. Errors: as Planner.
std::vector<Delivery> plan_for_source(const JobLayout& from, const JobLayout& to, Rank source);

/// Throws Error{layout_mismatch} with all gaps when there are any; the message names fqn, state, box and rank of the first
/// few and counts the rest.
void require_no_gaps(std::vector<Gap> gaps);

/// Number of contiguous runs usable on both sides when `box` is copied from `held` to `wanted`: its volume divided by that of
/// the dims whose elements follow one another without a hole in both, in whatever order the dims lie.
/// Requires: both boxes contain `box`.
ElementCount runs_of(const Box& box, const PlacedBox& held, const PlacedBox& wanted);

}  // namespace shardwire
SHARDWIRE_API_END
