// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "plan/planner_state.hpp"
#include "support/checked.hpp"

namespace shardwire {
namespace {

// The list of a target rank is sorted if it has at most this many boxes and items.
constexpr std::size_t max_boxes_in_order = 1u << 16;
constexpr std::size_t max_items_in_order = 1u << 20;

// Values common to the tensors of each class.
template <typename T>
using ByClass = std::unordered_map<std::uint32_t, std::vector<T>>;

// Calls append(class, shares, list) while the list is short enough to be sorted. False: it is too long.
template <typename T, typename State, typename Append>
bool collect(State& state, Rank target, std::uint32_t section, ByClass<T>& lists, Append append) {
  std::size_t boxes = 0;
  std::size_t items = 0;
  for (const std::uint32_t id : state.distinct_classes_of(section)) {
    std::vector<T>& list = lists[id];
    state.share_out(id, target, {}, [&](const Shares& shares) {
      const std::size_t before = list.size();
      append(id, shares, list);
      boxes += list.size() - before;
      items += (list.size() - before) * state.classes[id].tensors.size();
      return boxes <= max_boxes_in_order && items <= max_items_in_order;
    });
  }
  return boxes <= max_boxes_in_order && items <= max_items_in_order;
}

// Calls visit(tensor, item) by tensor.
template <typename T, typename State, typename Visit>
void each_item(State& state, std::uint32_t section, const ByClass<T>& lists, Visit visit) {
  const Manifest& manifest = *state.to.sections[section].manifest;
  const std::vector<std::uint32_t>& ids = state.classes_of(section);
  for (std::uint32_t t = 0; t < ids.size(); ++t) {
    if (ids[t] == State::by_value) continue;
    for (const T& item : lists.at(ids[t])) visit(manifest.tensors[t].spec, item);
  }
}

// Calls visit(class, shares) for the needs of `target`, in parts of bounded size.
template <typename State, typename Visit>
void each_shares(State& state, Rank target, std::uint32_t section, Visit visit) {
  for (const std::uint32_t id : state.distinct_classes_of(section)) {
    state.share_out(id, target, {}, [&](const Shares& shares) {
      visit(id, shares);
      return true;
    });
  }
}

struct Listed {
  Box box;
  Rank source{};
  std::uint32_t wanted = 0;  // number of the wanted box
  Extents offset;            // of the piece that this is, or is a part of

  [[nodiscard]] auto place() const { return std::tie(wanted, offset); }
};

PlannedTransfer transfer_of(const TensorSpec& spec, Rank source, Rank target, const Box& box) {
  const auto elements = static_cast<ByteCount>(box.volume());
  return {spec, source, target, box, support::multiply(elements, ByteCount{item_size(spec.dtype)}, "bytes of a piece")};
}

// Returns false and lists nothing if there is too much to be sorted.
template <typename State>
bool list_in_posting_order(State& state, Rank target, std::uint32_t section, const OnTransfer& on_transfer) {
  ByClass<Listed> lists;
  std::vector<SourcedBox> parts;
  const auto append = [&](std::uint32_t id, const Shares& shares, std::vector<Listed>& list) {
    parts.clear();
    state.choice_for(id, target, {}).choose_all(shares, parts);
    for (const SourcedBox& part : parts) {
      const Share& share = shares.shares[part.share];
      list.push_back({part.box, part.source, share.wanted, share.box.offset});
    }
  };
  if (!collect(state, target, section, lists, append)) return false;
  for (auto& [id, list] : lists) {
    std::stable_sort(list.begin(), list.end(), [](const Listed& a, const Listed& b) { return a.place() < b.place(); });
  }

  std::vector<std::pair<const TensorSpec*, const Listed*>> items;
  std::vector<Rank> sources;
  each_item(state, section, lists, [&](const TensorSpec& spec, const Listed& listed) {
    items.emplace_back(&spec, &listed);
    sources.push_back(listed.source);
  });
  for (const std::uint32_t i : posting_order(sources, target, state.colocated(target))) {
    const auto& [spec, listed] = items[i];
    on_transfer(transfer_of(*spec, listed->source, target, listed->box));
  }
  return true;
}

template <typename State>
void list_as_found(State& state, Rank target, std::uint32_t section, const OnTransfer& on_transfer) {
  const Manifest& manifest = *state.to.sections[section].manifest;
  std::vector<SourcedBox> parts;
  each_shares(state, target, section, [&](std::uint32_t id, const Shares& shares) {
    parts.clear();
    state.choice_for(id, target, {}).choose_all(shares, parts);
    for (const TensorId tensor : state.classes[id].tensors) {
      const TensorSpec& spec = manifest.tensors[to_index(tensor)].spec;
      for (const SourcedBox& part : parts) on_transfer(transfer_of(spec, part.source, target, part.box));
    }
  });
}

}  // namespace

void Planner::each_transfer(std::span<const Rank> targets, const OnTransfer& on_transfer) {
  for (const Rank target : targets) {
    const std::optional<std::uint32_t> section = state_->section_of_target(target);
    if (!section) continue;
    if (!list_in_posting_order(*state_, target, *section, on_transfer)) {
      list_as_found(*state_, target, *section, on_transfer);
    }
  }
}

void Planner::each_gap(std::span<const Rank> targets, const OnGap& on_gap) {
  for (const Rank target : targets) {
    const std::optional<std::uint32_t> section = state_->section_of_target(target);
    if (!section) continue;
    const auto show = [&](const TensorSpec& spec, const Box& box) {
      on_gap({spec.key.fqn, spec.key.state, box, target});
    };
    ByClass<Box> lists;
    const auto append = [](std::uint32_t, const Shares& shares, std::vector<Box>& list) {
      list.insert(list.end(), shares.gaps.begin(), shares.gaps.end());
    };
    if (collect(*state_, target, *section, lists, append)) {
      each_item(*state_, *section, lists, show);
      continue;
    }
    const Manifest& manifest = *state_->to.sections[*section].manifest;
    each_shares(*state_, target, *section, [&](std::uint32_t id, const Shares& shares) {
      for (const TensorId tensor : state_->classes[id].tensors) {
        for (const Box& box : shares.gaps) show(manifest.tensors[to_index(tensor)].spec, box);
      }
    });
  }
}

}  // namespace shardwire
