// SPDX-License-Identifier: Apache-2.0
#include "plan/replan.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

#include "geometry/overlap.hpp"
#include "plan/aliases.hpp"
#include "plan/key_table.hpp"

namespace shardwire {

namespace {

std::vector<Rank> surviving(const std::vector<Rank>& holders, std::span<const Rank> lost) {
  std::vector<Rank> left;
  std::ranges::copy_if(holders, std::back_inserter(left),
                       [&](Rank rank) { return std::ranges::find(lost, rank) == lost.end(); });
  return left;
}

std::span<const Rank> corrupt_for(const CorruptHolders& corrupt, TensorId tensor) {
  const auto found = corrupt.find(tensor);
  return found == corrupt.end() ? std::span<const Rank>() : std::span<const Rank>(found->second);
}

/// Where the ranks of one side hold the tensors of another.
class Holdings {
 public:
  explicit Holdings(const JobLayout& side) : side_(side), names_(side), keys_(side, names_) {
    for (std::uint32_t section = 0; section < side.sections.size(); ++section) {
      for (std::uint32_t t = 0; t < side.sections[section].manifest->tensors.size(); ++t) {
        keys_.add(section, TensorId{t});
      }
      for (const Rank rank : side.sections[section].ranks) section_of_[rank] = section;
    }
  }

  [[nodiscard]] std::uint32_t section_of(Rank holder) const { return section_of_.at(side_.rank_of(holder)); }
  /// The tensor that one section calls `held`, in the section of `holder`, which holds it too.
  [[nodiscard]] TensorId same_tensor(std::uint32_t section, TensorId held, Rank holder) const {
    const TensorKey& key = side_.sections[section].manifest->tensors[to_index(held)].spec.key;
    std::uint32_t place = keys_.find(names_.name_of(key.fqn), key.state);
    while (keys_.place(place).section != section_of(holder)) place = keys_.place(place).next;
    return keys_.place(place).tensor;
  }

 private:
  const JobLayout& side_;
  NameClasses names_;
  KeyTable keys_;
  std::map<Rank, std::uint32_t> section_of_;  // by rank
};

/// Spreads regions over their holders.
class Choice {
 public:
  Choice(Rank target, Replicas replicas) : target_(static_cast<std::size_t>(to_int(target))), replicas_(replicas) {}

  /// Requires: there is a holder.
  Rank choose(const std::vector<Rank>& holders, ElementCount elements) {
    if (replicas_ != Replicas::spread) return holders.front();
    Rank best = holders[target_ % holders.size()];  // readers start at different holders
    for (const Rank holder : holders) {
      if (chosen_[holder] < chosen_[best]) best = holder;
    }
    chosen_[best] += elements;
    return best;
  }

 private:
  std::size_t target_;
  Replicas replicas_;
  std::map<Rank, ElementCount> chosen_;
};

// The box, apart from one dimension.
auto beside(const PieceBox& one, std::size_t dim) {
  Box others = one.box;
  others.offset[dim] = 0;
  others.size[dim] = 0;
  return std::tuple(one.piece, others);
}

}  // namespace

std::vector<PieceBox> joined(std::vector<PieceBox> boxes) {
  std::size_t dims = 0;
  for (const PieceBox& one : boxes) dims = std::max(dims, one.box.dims());
  // Parts are cut in row-major order: the last dimension has to be whole before those before it can be.
  for (std::size_t dim = dims; dim-- > 0;) {
    std::vector<PieceBox> larger;
    std::ranges::sort(boxes, {}, [dim](const PieceBox& one) {
      const bool has_it = dim < one.box.dims();
      return std::tuple(has_it ? beside(one, dim) : std::tuple(one.piece, one.box), has_it ? one.box.lower(dim) : 0);
    });
    for (const PieceBox& one : boxes) {
      const bool touches = !larger.empty() && dim < one.box.dims() && one.piece == larger.back().piece &&
                           beside(larger.back(), dim) == beside(one, dim) &&
                           larger.back().box.upper(dim) == one.box.lower(dim);
      touches ? void(larger.back().box.size[dim] += one.box.size[dim]) : larger.push_back(one);
    }
    boxes = std::move(larger);
  }
  return boxes;
}

std::vector<Gap> without_holder(const Plan& plan, std::span<const PieceBox> missing, std::span<const Rank> lost,
                                const CorruptHolders& corrupt) {
  std::vector<Gap> gaps;
  for (const auto& [index, box] : missing) {
    const Piece& piece = plan.pieces[index];
    const std::vector<Rank> left = surviving(plan.holder_sets[piece.holders], lost);
    if (!surviving(left, corrupt_for(corrupt, piece.tensor)).empty()) continue;
    const TensorKey& key = plan.wanted->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, box, plan.target});
  }
  return gaps;
}

CarriedOver carry_over(const Plan& plan, std::span<const PieceBox> missing, const Plan& other) {
  struct OfTensor {
    std::vector<std::uint32_t> pieces{};  // by their first row
    Extent most_rows = 0;
  };
  const auto box_of = [&](std::uint32_t piece) -> const Box& { return other.box(other.pieces[piece]); };
  const auto first_row = [&](std::uint32_t piece) { return box_of(piece).lower(0); };
  std::map<TensorId, OfTensor> tensors;
  for (const PieceBox& one : missing) tensors[plan.pieces[one.piece].tensor];
  for (std::uint32_t piece = 0; piece < other.pieces.size(); ++piece) {
    const auto found = tensors.find(other.pieces[piece].tensor);
    if (found == tensors.end()) continue;
    found->second.pieces.push_back(piece);
    found->second.most_rows = std::max(found->second.most_rows, box_of(piece).size[0]);
  }
  for (auto& [tensor, of] : tensors) std::ranges::sort(of.pieces, {}, first_row);

  CarriedOver carried;
  for (const auto& [index, box] : missing) {
    const OfTensor& of = tensors.at(plan.pieces[index].tensor);
    std::vector<Box> left{box};
    auto next = std::ranges::lower_bound(of.pieces, box.lower(0) - of.most_rows, {}, first_row);
    for (; next != of.pieces.end() && first_row(*next) < box.upper(0) && !left.empty(); ++next) {
      const auto common = intersect(box, box_of(*next));
      if (!common) continue;
      carried.boxes.push_back({*next, *common});
      std::vector<Box> without;
      for (const Box& part : left) {
        const auto hole = intersect(part, *common);
        hole ? subtract(part, *hole, without) : without.push_back(part);
      }
      left = std::move(without);
    }
    const TensorKey& key = plan.wanted->tensors[to_index(plan.pieces[index].tensor)].spec.key;
    for (const Box& part : left) carried.gaps.push_back({key.fqn, key.state, part, plan.target});
  }
  return carried;
}

Rank add_copy(JobLayout& from, Plan& plan, Rank rank) {
  const Rank copy{from.holders()};
  for (std::vector<Rank>& set : plan.holder_sets) {
    if (std::ranges::any_of(set, [&](Rank holder) { return from.rank_of(holder) == rank; })) set.push_back(copy);
  }
  from.copies.push_back(rank);
  return copy;
}

Replan replan(const Plan& plan, const Schedule& schedule, const JobLayout& from, std::span<const PieceBox> missing,
              const Unavailable& unavailable, Replicas replicas) {
  require_no_gaps(without_holder(plan, missing, unavailable.lost, unavailable.corrupt));
  std::vector<const ScheduledPiece*> item_of(plan.pieces.size());
  for (const ScheduledPiece& item : schedule.items) item_of[item.piece] = &item;
  const Holdings holdings(from);
  Choice choice(plan.target, replicas);
  Replan made;
  made.plan.target = plan.target;
  made.plan.wanted = plan.wanted;
  std::map<std::uint32_t, std::uint32_t> sets;  // holder sets, by their number in the old plan
  for (const auto& [index, box] : missing) {
    const Piece& piece = plan.pieces[index];
    const auto [set, fresh] = sets.emplace(piece.holders, static_cast<std::uint32_t>(made.plan.holder_sets.size()));
    if (fresh) made.plan.holder_sets.push_back(plan.holder_sets[piece.holders]);
    const auto number = static_cast<std::uint32_t>(made.plan.pieces.size());
    made.plan.pieces.push_back({piece.tensor, number, set->second});
    made.plan.regions.push_back(box);
    const std::vector<Rank> holders = surviving(surviving(made.plan.holder_sets[set->second], unavailable.lost),
                                                corrupt_for(unavailable.corrupt, piece.tensor));
    const std::vector<Rank> answering = surviving(holders, unavailable.silent);
    const std::vector<Rank> prompt = surviving(answering, unavailable.slow);
    const Rank source = choice.choose(!prompt.empty()      ? prompt
                                      : !answering.empty() ? answering
                                                           : holders,
                                      box.volume());
    const ScheduledPiece& old = *item_of[index];
    made.schedule.items.push_back(
        {number, number, source, holdings.section_of(source), holdings.same_tensor(old.section, old.held, source), 0});
    made.schedule.regions.push_back(box);
  }
  return made;
}

}  // namespace shardwire
