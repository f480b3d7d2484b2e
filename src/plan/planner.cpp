// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "geometry/by_value.hpp"
#include "geometry/placed_boxes.hpp"
#include "plan/planner_state.hpp"
#include "shardwire/error.hpp"

namespace shardwire {
namespace {

[[noreturn]] void disagree(const TensorSpec& a, const TensorSpec& b, std::string_view where) {
  const auto text = [](const TensorSpec& spec) {
    return fmt::format("{} {}", to_string(spec.dtype), to_string(spec.shape));
  };
  throw Error(ErrorCode::layout_mismatch,
              fmt::format("tensor {} is {} and {} {}", to_string(a.key), text(a), text(b), where));
}

[[noreturn]] void refuse(std::string_view side, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the {} side: {}", side, why));
}

// Section of each rank, -1 for none.
std::vector<std::int32_t> sections_of_ranks(const JobLayout& job, std::string_view side) {
  if (job.ranks < 0) refuse(side, fmt::format("{} ranks", job.ranks));
  std::vector<std::int32_t> sections(static_cast<std::size_t>(job.ranks), -1);
  for (std::size_t i = 0; i < job.sections.size(); ++i) {
    if (job.sections[i].manifest == nullptr) refuse(side, fmt::format("section {} has no manifest", i));
    int previous = -1;
    for (const Rank rank : job.sections[i].ranks) {
      const int r = to_int(rank);
      if (r < 0 || r >= job.ranks) refuse(side, fmt::format("section {} names rank {} of {}", i, r, job.ranks));
      if (r <= previous) refuse(side, fmt::format("section {} names rank {} after rank {}", i, r, previous));
      previous = r;
      std::int32_t& section = sections[static_cast<std::size_t>(r)];
      if (section >= 0) refuse(side, fmt::format("rank {} is in sections {} and {}", r, section, i));
      section = static_cast<std::int32_t>(i);
    }
  }
  return sections;
}

// The further holders of each rank.
LayoutSearch::Copies copies_of(const JobLayout& from) {
  LayoutSearch::Copies copies;
  for (int holder = from.ranks; holder < from.holders(); ++holder) {
    const Rank rank = from.rank_of(Rank{holder});
    if (to_int(rank) < 0 || to_int(rank) >= from.ranks) {
      refuse("source", fmt::format("holder {} copies rank {} of {}", holder, to_int(rank), from.ranks));
    }
    copies.emplace(rank, Rank{holder});
  }
  return copies;
}

void check_size(const std::vector<std::int32_t>& list, int ranks, std::string_view what) {
  if (list.empty() || std::ssize(list) == ranks) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the topology's {} has {} entries for {} ranks", what, list.size(), ranks));
}

void check_topology(const Topology& topology, int holders, int target_ranks) {
  check_size(topology.colocated, target_ranks, "colocated");
  check_size(topology.source_host, holders, "source_host");
  check_size(topology.target_host, target_ranks, "target_host");
  for (const std::int32_t rank : topology.colocated) {
    if (rank >= -1 && rank < holders) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the topology colocates a target with source rank {}, out of range 0..{}", rank, holders - 1));
  }
}

// The names may differ if one is an alias of the other.
bool alike(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

// Adds the place of a key. Errors: throws if the key's section already has the key, or another section has it with
// another spec.
void enter_key(KeyTable& keys, std::uint32_t section, TensorId tensor, std::string_view side) {
  const std::uint32_t first = keys.add(section, tensor);
  const std::uint32_t before = keys.place_before_last(first);
  if (before == KeyTable::none) return;
  const TensorSpec& spec = keys.tensor({section, tensor}).spec;
  if (keys.place(before).section == section) {
    const TensorKey& twin = keys.tensor(keys.place(before)).spec.key;
    refuse(side, twin == spec.key ? fmt::format("tensor {} stands twice in section {}", to_string(twin), section)
                                  : fmt::format("tensors {} and {} of section {} are one by the alias tables",
                                                to_string(twin), to_string(spec.key), section));
  }
  const TensorSpec& other = keys.tensor(keys.place(first)).spec;
  if (!alike(other, spec)) {
    disagree(other, spec,
             fmt::format("in sections {} and {} of the {} side", keys.place(first).section, section, side));
  }
}

template <typename Visit>
void for_each_tensor(const JobLayout& job, LayoutTable& layouts, Visit visit) {
  for (std::uint32_t s = 0; s < job.sections.size(); ++s) {
    const Manifest& manifest = *job.sections[s].manifest;
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
      const TensorLayout& tensor = manifest.tensors[t];
      layouts.check(tensor, manifest.ranks);
      visit(s, TensorId{t}, tensor);
    }
  }
}

}  // namespace

Planner::State::State(JobLayout from_side, JobLayout to_side, Topology where, Replicas which)
    : from(std::move(from_side)),
      to(std::move(to_side)),
      topology(std::move(where)),
      replicas(which),
      names(from, to),
      from_section(sections_of_ranks(from, "source")),
      to_section(sections_of_ranks(to, "target")),
      from_keys(from, names.held()),
      copies(copies_of(from)),
      held_of(to.sections.size()),
      classes_of_section(to.sections.size()),
      distinct_of_section(to.sections.size()),
      splitter(replicas == Replicas::spread ? ShareSplitter::Order::by_size : ShareSplitter::Order::by_rank) {
  if (!to.copies.empty()) refuse("target", "it has copies");
  check_topology(topology, from.holders(), to.ranks);
  for_each_tensor(from, layouts, [&](std::uint32_t section, TensorId tensor, const TensorLayout&) {
    enter_key(from_keys, section, tensor, "source");
  });
  // A key that is held under the same name is identified by its place there; only the other keys need a table.
  const NameClasses no_names;
  KeyTable others(to, no_names);
  std::vector<std::uint32_t> wanted_in(from_keys.size(), KeyTable::none);  // by first place: last section of `to`
  std::uint32_t near = 0;
  for_each_tensor(to, layouts, [&](std::uint32_t section, TensorId id, const TensorLayout& tensor) {
    const TensorKey& key = tensor.spec.key;
    const std::uint32_t held = find_held(key, near);
    held_of[section].push_back(held);
    if (held == KeyTable::none) return enter_key(others, section, id, "target");
    near = held + 1;
    const TensorSpec& held_spec = from_keys.tensor(from_keys.place(held)).spec;
    if (held_spec.key != key) {
      enter_key(others, section, id, "target");
    } else if (std::exchange(wanted_in[held], section) == section) {
      refuse("target", fmt::format("tensor {} stands twice in section {}", to_string(key), section));
    }
    if (!alike(held_spec, tensor.spec)) disagree(held_spec, tensor.spec, "on the source and the target side");
  });
}

std::uint32_t Planner::State::find_held(const TensorKey& key, std::uint32_t near) const {
  std::uint32_t found = KeyTable::none;
  const auto name = names.find(key.fqn, [&](std::string_view fqn) {
    found = from_keys.find(fqn, key.state, near);
    return found != KeyTable::none;
  });
  return name ? from_keys.find(*name, key.state, found) : KeyTable::none;
}

const std::vector<std::uint32_t>& Planner::State::classes_of(std::uint32_t section) {
  std::vector<std::uint32_t>& ids = classes_of_section[section];
  const Manifest& manifest = *to.sections[section].manifest;
  if (!ids.empty() || manifest.tensors.empty()) return ids;
  ids.reserve(manifest.tensors.size());
  SourceClass held;
  for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
    const TensorLayout& tensor = manifest.tensors[t];
    if (travels_by_value(tensor.spec)) {
      ids.push_back(by_value);
      continue;
    }
    held.shape = layouts.id_of(tensor.spec.shape);
    held.layouts.clear();
    for (std::uint32_t p = held_of[section][t]; p != KeyTable::none; p = from_keys.place(p).next) {
      const KeyPlace& place = from_keys.place(p);
      held.layouts.emplace_back(place.section, layouts.id_of(from_keys.tensor(place).layout));
    }
    const auto [known, fresh] = source_classes.try_emplace(held, static_cast<std::uint32_t>(source_classes.size()));
    if (fresh) searches.emplace_back();
    const std::uint32_t layout = layouts.id_of(tensor.layout);
    const auto [id, fresh_class] =
        class_ids.try_emplace({known->second, section, layout}, static_cast<std::uint32_t>(classes.size()));
    if (fresh_class) {
      classes.push_back({&known->first, known->second, section, layout, {}, 0, nullptr});
      distinct_of_section[section].push_back(id->second);
    }
    Class& of_tensor = classes[id->second];
    of_tensor.tensors.push_back(TensorId{t});
    of_tensor.item_bytes += item_size(tensor.spec.dtype);
    ids.push_back(id->second);
  }
  return ids;
}

std::vector<LayoutSearch>& Planner::State::sources_of(std::uint32_t id) {
  std::vector<LayoutSearch>& sources = searches[classes[id].held_class];
  if (sources.empty()) {
    for (const auto& [section, layout] : classes[id].held->layouts) {
      sources.emplace_back(layouts.layout(layout), shape_of(id), from.sections[section].ranks, &copies);
    }
  }
  return sources;
}

void Planner::State::share_out(std::uint32_t id, Rank target, Shares& out) {
  out.clear();
  out.wanted = wanted_boxes(id, target);
  if (out.wanted.empty()) return;
  splitter.split(sources_of(id), preferred(target), out);
  mark_replicated(id, out);
}

void Planner::State::share_out(std::uint32_t id, Rank target, std::span<const Rank> lost, OnShares on_shares) {
  scratch_.clear();
  scratch_.wanted = wanted_boxes(id, target);
  if (scratch_.wanted.empty()) return;
  if (take_own(id, target, lost)) {
    on_shares(scratch_);
    return;
  }
  splitter.split_in_parts(sources_of(id), preferred(target), scratch_, [&] {
    mark_replicated(id, scratch_);
    return on_shares(scratch_);
  });
}

bool Planner::State::take_own(std::uint32_t id, Rank target, std::span<const Rank> lost) {
  const Class& of_tensor = classes[id];
  const std::int32_t own = preferred(target);
  if (!of_tensor.replicated || own < 0 || std::binary_search(lost.begin(), lost.end(), Rank{own})) return false;
  const auto& held = of_tensor.held->layouts;
  const std::int32_t section = from_section_of(Rank{own});
  const auto layout =
      std::find_if(held.begin(), held.end(), [&](const auto& one) { return static_cast<int>(one.first) == section; });
  if (layout == held.end()) return false;
  const PlacedBoxes own_boxes(layouts.layout(layout->second).boxes_of(shape_of(id), from.rank_of(Rank{own})));
  for (std::uint32_t i = 0; i < scratch_.wanted.size(); ++i) {
    const PlacedBox* around = own_boxes.around(scratch_.wanted[i].box);
    if (around == nullptr) {
      scratch_.clear_found();
      return false;
    }
    scratch_.shares.push_back({scratch_.wanted[i].box, i, i, 1, true});
    scratch_.holders.push_back({Rank{own}, i});
    scratch_.held.push_back(*around);
  }
  return true;
}

void Planner::State::mark_replicated(std::uint32_t id, const Shares& shares) {
  for (const Share& share : shares.shares) classes[id].replicated = classes[id].replicated || share.holders > 1;
}

SourceChoice Planner::State::choice_for(std::uint32_t id, Rank target, std::span<const Rank> lost) {
  Class& of_tensor = classes[id];
  const Surroundings where{topology, from.ranks};
  if (of_tensor.readers == nullptr) {
    of_tensor.readers = std::make_unique<ReplicaReaders>(
        LayoutSearch(layouts.layout(of_tensor.layout), shape_of(id), to.sections[of_tensor.section].ranks), where);
  }
  return {*of_tensor.readers, where, replicas, target, lost};
}

std::int32_t Planner::State::colocated(Rank target) const {
  return Surroundings{topology, from.ranks}.colocated(target);
}

std::int32_t Planner::State::preferred(Rank target) const {
  return replicas == Replicas::spread ? colocated(target) : -1;
}

TensorId Planner::State::held_tensor(std::uint32_t to_section_number, TensorId tensor,
                                     std::uint32_t from_section_number) const {
  std::uint32_t p = held_of[to_section_number][to_index(tensor)];
  while (from_keys.place(p).section != from_section_number) p = from_keys.place(p).next;
  return from_keys.place(p).tensor;
}

std::vector<Rank> Planner::State::targets() const {
  std::vector<Rank> all(static_cast<std::size_t>(to.ranks));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = Rank{static_cast<std::int32_t>(i)};
  return all;
}

std::optional<std::uint32_t> Planner::State::section_of_target(Rank target) {
  if (to_int(target) < 0 || to_int(target) >= to.ranks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("target rank {} is out of range 0..{}", to_int(target), to.ranks - 1));
  }
  if (to_section_of(target) < 0) return std::nullopt;
  const auto section = static_cast<std::uint32_t>(to_section_of(target));
  classes_of(section);
  return section;
}

std::vector<Rank> sorted(std::span<const Rank> ranks) {
  std::vector<Rank> list(ranks.begin(), ranks.end());
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

Planner::Planner(JobLayout from, JobLayout to, Topology topology, Replicas replicas)
    : state_(std::make_unique<State>(std::move(from), std::move(to), std::move(topology), replicas)) {
}
Planner::~Planner() = default;
Planner::Planner(Planner&&) noexcept = default;
Planner& Planner::operator=(Planner&&) noexcept = default;

const JobLayout& Planner::from() const {
  return state_->from;
}
const JobLayout& Planner::to() const {
  return state_->to;
}

Plan Planner::plan(Rank target) {
  Plan plan;
  plan.target = target;
  const std::optional<std::uint32_t> section = state_->section_of_target(target);
  if (!section) return plan;
  plan.wanted = state_->to.sections[*section].manifest;

  struct OfClass {  // in plan.regions, and the holder set of each
    std::uint32_t first_region = 0;
    std::vector<std::uint32_t> holders;
    std::vector<Box> gaps;
  };
  const std::vector<std::uint32_t>& ids = state_->classes_of(*section);
  std::unordered_map<std::uint32_t, OfClass> known;
  std::map<std::vector<Rank>, std::uint32_t> sets;
  std::size_t pieces = 0;
  Shares shares;
  for (const std::uint32_t id : state_->distinct_classes_of(*section)) {
    state_->share_out(id, target, shares);
    OfClass& entry = known[id];
    entry.first_region = static_cast<std::uint32_t>(plan.regions.size());
    entry.gaps = shares.gaps;
    for (const Share& share : shares.shares) {
      plan.regions.push_back(share.box);
      std::vector<Rank> ranks;
      for (const Holder& holder : shares.holders_of(share)) ranks.push_back(holder.rank);
      const auto [set, fresh] = sets.try_emplace(ranks, static_cast<std::uint32_t>(plan.holder_sets.size()));
      if (fresh) plan.holder_sets.push_back(std::move(ranks));
      entry.holders.push_back(set->second);
    }
    pieces += entry.holders.size() * state_->classes[id].tensors.size();
  }
  plan.pieces.reserve(pieces);
  std::pair<std::uint32_t, const OfClass*> last{State::by_value, nullptr};
  for (std::uint32_t t = 0; t < ids.size(); ++t) {
    if (ids[t] == State::by_value) continue;
    if (ids[t] != last.first) last = {ids[t], &known.at(ids[t])};
    const OfClass& entry = *last.second;
    for (std::uint32_t i = 0; i < entry.holders.size(); ++i) {
      plan.pieces.push_back({TensorId{t}, entry.first_region + i, entry.holders[i]});
    }
    const TensorKey& key = plan.wanted->tensors[t].spec.key;
    for (const Box& gap : entry.gaps) plan.gaps.push_back({key.fqn, key.state, gap, target});
  }
  return plan;
}

}  // namespace shardwire
