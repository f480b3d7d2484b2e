// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/shares.hpp"
#include "shardwire/plan.hpp"

namespace shardwire {

/// A region that a target reads from one source.
struct SourcedBox {
  Box box;
  Rank source{};
  std::uint32_t held = 0;  ///< index into Shares::held
  std::uint32_t share = 0;
};

/// The location of ranks, with defaults filled in. Ownership: borrows.
struct Surroundings {
  const Topology& topology;
  int source_ranks = 0;

  /// Holder in the process of a target rank; -1 none.
  [[nodiscard]] std::int32_t colocated(Rank target) const;
  [[nodiscard]] bool hosts_known() const { return !topology.source_host.empty() && !topology.target_host.empty(); }
  [[nodiscard]] bool same_host(Rank source, Rank target) const;
};

/// The readers of boxes that several ranks hold, among the ranks of one target section and for one class of tensors.
/// Every caller computes the same result, so readers spread over replicas without communication.
class ReplicaReaders {
 public:
  ReplicaReaders(LayoutSearch wanted, Surroundings where) : wanted_(std::move(wanted)), where_(where) {}

  /// All readers of one held box that choose among the same sources, on a line by offset and rank; the line is divided
  /// into as many equal parts as there are sources.
  class Line {
   public:
    /// A reader's part of the held box: a number of consecutive elements in row-major order.
    struct Reader {
      ElementCount position = 0;
      std::int32_t rank = 0;
      ElementCount volume = 0;
      [[nodiscard]] auto place() const { return std::pair(position, rank); }
    };
    /// `readers`: by position.
    explicit Line(std::span<const Reader> readers);
    /// Where on the line the part of the reader at this position begins; none for no reader.
    [[nodiscard]] std::optional<ElementCount> find(ElementCount position, Rank rank) const;
    [[nodiscard]] ElementCount total() const { return total_; }

   private:
    struct Run {  // evenly spaced consecutive readers: millions of ranks are few runs
      Reader first;
      ElementCount position_step = 0;
      std::int64_t rank_step = 0;
      std::int64_t count = 0;
      ElementCount begin = 0;

      [[nodiscard]] bool takes(const Reader& next) const;
    };
    std::vector<Run> runs_;
    ElementCount total_ = 0;
  };
  /// `holders`: surviving holders of `held`; `candidates`: those of them that a reader would choose among. Valid until
  /// the next call.
  const Line& line(const Box& held, const std::vector<Rank>& holders, const std::vector<Rank>& candidates);
  /// The ranks of `holders` that `target` chooses among: those on its host, else all.
  [[nodiscard]] std::vector<Rank> candidates_of(const std::vector<Rank>& holders, Rank target) const;

 private:
  [[nodiscard]] Line make_line(const Box& held, const std::vector<Rank>& holders, const std::vector<Rank>& candidates);

  LayoutSearch wanted_;
  Surroundings where_;
  std::map<std::tuple<Box, std::vector<Rank>, std::vector<Rank>>, Line, std::less<>> lines_;
};

/// Chooses sources: a pure function of the layouts, the topology, the policy, the lost ranks and the target (layouts and target are
/// in the shares).
class SourceChoice {
 public:
  /// `lost`: ascending.
  SourceChoice(ReplicaReaders& readers, Surroundings where, Replicas replicas, Rank target, std::span<const Rank> lost)
      : readers_(readers), where_(where), replicas_(replicas), target_(target), lost_(lost) {}

  /// Appends the parts of one share, in order of their offsets: one part, or several if replicas serve a large share
  /// together. None if every holder is lost.
  void choose(const Shares& shares, std::uint32_t share, std::vector<SourcedBox>& out);
  /// The same for all shares. Returns the number of shares without a part.
  std::uint32_t choose_all(const Shares& shares, std::vector<SourcedBox>& out);

 private:
  void spread(const Shares& shares, std::uint32_t share, std::vector<SourcedBox>& out);
  [[nodiscard]] static SourcedBox part_of(const Box& box, std::span<const Holder> holders, Rank source,
                                          std::uint32_t share);

  ReplicaReaders& readers_;
  Surroundings where_;
  Replicas replicas_;
  Rank target_;
  std::span<const Rank> lost_;
  std::vector<Rank> survivors_;
};

}  // namespace shardwire
