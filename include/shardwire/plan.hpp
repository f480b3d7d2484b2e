// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shardwire/error.hpp"
#include "shardwire/layout.hpp"
#include "shardwire/tensor.hpp"

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

/// A region that one wanted box needs and that each of `holder_sets[holders]` holds whole.
struct Piece {
  TensorId tensor{};          ///< in the target rank's manifest
  Box box;                    ///< global coordinates, never empty
  std::uint32_t holders = 0;  ///< index into Plan::holder_sets
};

/// Which pieces one target rank needs and who holds them. Says nothing about order or choice of source: that is the
/// schedule, which is remade without a new plan when a holder is lost.
struct Plan {
  Rank target{};
  std::shared_ptr<const Manifest> wanted;      ///< null when the target rank wants nothing; owners as in Section
  std::vector<Piece> pieces;                   ///< by tensor, then by wanted box, then by offset
  std::vector<std::vector<Rank>> holder_sets;  ///< each ascending
  std::vector<Gap> gaps;                       ///< wanted regions that no rank holds
};

/// A piece with its source.
struct ScheduledPiece {
  std::uint32_t piece = 0;  ///< index into Plan::pieces
  Rank source{};
  std::uint32_t section = 0;  ///< of the source, in the `from` side
  TensorId held{};            ///< in the source's manifest
  std::uint32_t wave = 0;     ///< pieces of a lower wave are posted first
};

/// The plan made concrete: one source per piece, in the order of posting.
struct Schedule {
  std::vector<ScheduledPiece> items;
};

/// Plans any number of target ranks of one (from, to) pair; pairs of the same shape and layouts are looked at once.
/// One-element tensors travel by value and are left out.
/// Threads: one thread at a time.
/// Errors: the constructor throws Error{layout_mismatch} when a tensor has different dtype or shape on the two sides,
///         or a layout does not fit its tensor; and when two sections disagree about a key.
class Planner {
 public:
  Planner(JobLayout from, JobLayout to);
  ~Planner();
  Planner(Planner&&) noexcept;
  Planner& operator=(Planner&&) noexcept;

  /// Proves the cover: in the result every wanted element is in exactly one piece or in exactly one gap, and every piece
  /// lies inside a box of each of its holders.
  /// Cost: O(pieces of this rank) once the classes involved are known.
  [[nodiscard]] Plan plan(Rank target);
  [[nodiscard]] const JobLayout& from() const;
  [[nodiscard]] const JobLayout& to() const;

  /// Picks a source for each piece, without the `lost` ones: the target itself where it holds the piece, else spread
  /// over the holders by a pure function of (plan, lost, target).
  /// Errors: throws Error{layout_mismatch} listing every gap, also those that `lost` opens.
  [[nodiscard]] Schedule schedule(const Plan& plan, std::span<const Rank> lost = {}) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// One target rank's plan, for callers that need a single one. Errors: as Planner.
Plan plan(const JobLayout& from, const JobLayout& to, Rank target);

/// Throws Error{layout_mismatch} with all gaps when there are any; the message names fqn, state, box and rank of the first
/// few and counts the rest.
void require_no_gaps(std::vector<Gap> gaps);

/// Number of contiguous runs usable on both sides when `box` is copied from `held` to `wanted` (layout maths M7).
/// Requires: both boxes contain `box`.
ElementCount runs_of(const Box& box, const PlacedBox& held, const PlacedBox& wanted);

}  // namespace shardwire
