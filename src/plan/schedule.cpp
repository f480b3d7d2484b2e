// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "plan/planner_state.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

// Holders looked at for one piece: bounds the work when thousands of ranks hold the same box.
constexpr std::size_t candidates = 16;

std::uint64_t mix(std::uint64_t value) {  // finaliser of splitmix64: neighbours end up far apart
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

// Surviving holders of each set.
std::vector<std::vector<Rank>> survivors_of(const Plan& plan, std::span<const Rank> lost) {
  std::vector<Rank> gone(lost.begin(), lost.end());
  std::sort(gone.begin(), gone.end());
  std::vector<std::vector<Rank>> sets = plan.holder_sets;
  if (gone.empty()) return sets;
  for (auto& set : sets) {
    std::erase_if(set, [&](Rank rank) { return std::binary_search(gone.begin(), gone.end(), rank); });
  }
  return sets;
}

// Gives each piece to the least burdened of its holders, large pieces first. Ties go to a place that turns with the
// target, so that readers of the same boxes spread over the replicas without knowing of each other.
class SourceChoice {
 public:
  SourceChoice(int ranks, Rank target) : target_(target), burden_(static_cast<std::size_t>(std::max(ranks, 0))) {}

  Rank choose(std::uint32_t piece, ByteCount bytes, const std::vector<Rank>& holders) {
    if (std::binary_search(holders.begin(), holders.end(), target_)) return target_;
    const auto turn = mix(piece) + static_cast<std::uint64_t>(to_int(target_));
    Rank best = holders[turn % holders.size()];
    for (std::size_t i = 1; i < std::min(holders.size(), candidates); ++i) {
      const Rank other = holders[(turn + i) % holders.size()];
      if (burden(other) < burden(best)) best = other;
    }
    burden(best) += bytes;
    return best;
  }

 private:
  ByteCount& burden(Rank rank) { return burden_[static_cast<std::size_t>(to_int(rank))]; }

  Rank target_;
  std::vector<ByteCount> burden_;  // bytes this target reads from each rank
};

// Round robin over the sources, so that all links work from the start, and each target begins at another one of its
// sources. Local pieces come last: they need no link, and copying them keeps the processor busy while remote bytes are
// on their way.
Schedule in_posting_order(Schedule schedule, Rank target, int source_ranks) {
  struct Turn {
    bool local = false;
    std::uint32_t nth = 0;    // piece of its source
    std::uint32_t place = 0;  // of the source in this target's order
    std::uint32_t item = 0;
    auto operator<=>(const Turn&) const = default;
  };
  constexpr std::uint32_t unused = ~0U;
  std::vector<std::uint32_t> place(static_cast<std::size_t>(source_ranks), unused);
  for (const ScheduledPiece& item : schedule.items) place[static_cast<std::size_t>(to_int(item.source))] = 0;
  std::uint32_t sources = 0;
  for (std::uint32_t& entry : place) entry = entry == unused ? unused : sources++;
  const std::uint32_t start = sources == 0 ? 0 : static_cast<std::uint32_t>(to_int(target)) % sources;

  std::vector<std::uint32_t> taken(sources);
  std::vector<Turn> turns;
  turns.reserve(schedule.items.size());
  for (std::uint32_t i = 0; i < schedule.items.size(); ++i) {
    const Rank source = schedule.items[i].source;
    const std::uint32_t at = place[static_cast<std::size_t>(to_int(source))];
    turns.push_back({source == target, taken[at]++, (at + sources - start) % sources, i});
  }
  std::sort(turns.begin(), turns.end());
  Schedule ordered;
  ordered.items.reserve(turns.size());
  for (const Turn& turn : turns) ordered.items.push_back(schedule.items[turn.item]);
  return ordered;
}

}  // namespace

Schedule Planner::schedule(const Plan& plan, std::span<const Rank> lost) const {
  const State& state = *state_;
  const std::vector<std::vector<Rank>> holders = survivors_of(plan, lost);
  std::vector<Gap> gaps = plan.gaps;
  for (const Piece& piece : plan.pieces) {
    if (!holders[piece.holders].empty()) continue;
    const TensorKey& key = plan.wanted->tensors[to_index(piece.tensor)].spec.key;
    gaps.push_back({key.fqn, key.state, piece.box, plan.target});
  }
  require_no_gaps(std::move(gaps));

  Schedule schedule;
  schedule.items.resize(plan.pieces.size());
  std::vector<ByteCount> bytes(plan.pieces.size());
  for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) {
    const Piece& piece = plan.pieces[i];
    bytes[i] =
        static_cast<ByteCount>(piece.box.volume()) * item_size(plan.wanted->tensors[to_index(piece.tensor)].spec.dtype);
  }
  std::vector<std::uint32_t> by_size(plan.pieces.size());
  std::iota(by_size.begin(), by_size.end(), 0U);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes[a] > bytes[b]; });
  SourceChoice choice(state.from.ranks, plan.target);
  for (const std::uint32_t i : by_size) {
    schedule.items[i].piece = i;
    schedule.items[i].source = choice.choose(i, bytes[i], holders[plan.pieces[i].holders]);
  }

  const std::vector<State::Place>* places = nullptr;
  for (std::uint32_t i = 0; i < plan.pieces.size(); ++i) {
    const TensorId tensor = plan.pieces[i].tensor;
    if (i == 0 || tensor != plan.pieces[i - 1].tensor) {
      places = &state.places_of(plan.wanted->tensors[to_index(tensor)].spec.key);
    }
    ScheduledPiece& item = schedule.items[i];
    item.section = static_cast<std::uint32_t>(state.from_section[static_cast<std::size_t>(to_int(item.source))]);
    const auto place =
        std::find_if(places->begin(), places->end(), [&](const State::Place& p) { return p.section == item.section; });
    item.held = place->tensor;
  }

  return in_posting_order(std::move(schedule), plan.target, state.from.ranks);
}

}  // namespace shardwire
