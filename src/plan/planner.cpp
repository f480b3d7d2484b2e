// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

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

// The names may differ where one is an alias of the other.
bool alike(const TensorSpec& a, const TensorSpec& b) {
  return a.dtype == b.dtype && a.shape == b.shape;
}

bool is_by_value(const TensorSpec& spec) {
  return std::all_of(spec.shape.begin(), spec.shape.end(), [](Extent extent) { return extent == 1; });
}

// Under NameClasses, a parameter has one key whatever name a section gives it.
template <typename KeyTable>
KeyTable keys_of(const JobLayout& job, std::string_view side, LayoutTable& layouts, const NameClasses& names) {
  KeyTable keys;
  std::size_t tensors = 0;
  for (const Section& section : job.sections) tensors += section.manifest->tensors.size();
  keys.reserve(tensors);
  for (std::uint32_t s = 0; s < job.sections.size(); ++s) {
    const Manifest& manifest = *job.sections[s].manifest;
    for (std::uint32_t t = 0; t < manifest.tensors.size(); ++t) {
      const TensorLayout& tensor = manifest.tensors[t];
      if (!is_by_value(tensor.spec)) layouts.check(tensor, manifest.ranks);
      auto& places = keys[{names.name_of(tensor.spec.key.fqn), tensor.spec.key.state}];
      if (!places.empty()) {
        const auto& first = places.front();
        const TensorSpec& other = job.sections[first.section].manifest->tensors[to_index(first.tensor)].spec;
        if (places.back().section == s) {
          const TensorKey& twin = manifest.tensors[to_index(places.back().tensor)].spec.key;
          refuse(side, twin == tensor.spec.key
                           ? fmt::format("tensor {} stands twice in section {}", to_string(twin), s)
                           : fmt::format("tensors {} and {} of section {} are one by the alias tables", to_string(twin),
                                         to_string(tensor.spec.key), s));
        }
        if (!alike(other, tensor.spec)) {
          disagree(other, tensor.spec, fmt::format("in sections {} and {} of the {} side", first.section, s, side));
        }
      }
      places.push_back({s, TensorId{t}});
    }
  }
  return keys;
}

}  // namespace

Planner::State::State(JobLayout from_side, JobLayout to_side)
    : from(std::move(from_side)),
      to(std::move(to_side)),
      names(from, to),
      from_section(sections_of_ranks(from, "source")),
      to_section(sections_of_ranks(to, "target")),
      classes_of_section(to.sections.size()) {
  from_keys = keys_of<KeyTable>(from, "source", layouts, names.held());
  const KeyTable to_keys = keys_of<KeyTable>(to, "target", layouts, NameClasses());
  for (const auto& [key, places] : to_keys) {
    const Place& target = places.front();
    const auto& held = places_of(to.sections[target.section].manifest->tensors[to_index(target.tensor)].spec.key);
    if (held.empty()) continue;
    const Place& source = held.front();
    const TensorSpec& held_spec = from.sections[source.section].manifest->tensors[to_index(source.tensor)].spec;
    const TensorSpec& wanted_spec = to.sections[target.section].manifest->tensors[to_index(target.tensor)].spec;
    if (!alike(held_spec, wanted_spec)) disagree(held_spec, wanted_spec, "on the source and the target side");
  }
}

const std::vector<Planner::State::Place>& Planner::State::places_of(const TensorKey& key) const {
  static const std::vector<Place> nowhere;
  const auto has = [&](std::string_view name) { return from_keys.contains({name, key.state}); };
  const auto name = names.find(key.fqn, has);
  return name ? from_keys.find({*name, key.state})->second : nowhere;
}

const std::vector<std::uint32_t>& Planner::State::classes_of(std::uint32_t section) {
  std::vector<std::uint32_t>& classes = classes_of_section[section];
  const Manifest& manifest = *to.sections[section].manifest;
  if (!classes.empty() || manifest.tensors.empty()) return classes;
  classes.reserve(manifest.tensors.size());
  for (const TensorLayout& tensor : manifest.tensors) {
    if (is_by_value(tensor.spec)) {
      classes.push_back(by_value);
      continue;
    }
    SourceClass source{tensor.spec.shape, {}};
    for (const Place& place : places_of(tensor.spec.key)) {
      const TensorLayout& held = from.sections[place.section].manifest->tensors[to_index(place.tensor)];
      source.held.emplace_back(place.section, layouts.id_of(held.layout));
    }
    const auto [known, fresh] =
        source_classes.try_emplace(std::move(source), static_cast<std::uint32_t>(source_class_of.size()));
    if (fresh) {
      source_class_of.push_back(&known->first);
      indices.emplace_back();
    }
    const TargetClass target{known->second, layouts.id_of(tensor.layout)};
    const auto [entry, new_target] =
        target_classes.try_emplace(target, static_cast<std::uint32_t>(target_class_of.size()));
    if (new_target) target_class_of.push_back(target);
    classes.push_back(entry->second);
  }
  return classes;
}

SourceIndex& Planner::State::index_of(std::uint32_t source_class) {
  std::optional<SourceIndex>& index = indices[source_class];
  if (!index) {
    const SourceClass& held = *source_class_of[source_class];
    std::vector<Source> sources;
    for (const auto& [section, layout] : held.held) {
      sources.push_back({&layouts.layout(layout), from.sections[section].ranks});
    }
    index.emplace(held.shape, std::move(sources));
  }
  return *index;
}

Planner::Planner(JobLayout from, JobLayout to) : state_(std::make_unique<State>(std::move(from), std::move(to))) {
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
  if (to_int(target) < 0 || to_int(target) >= state_->to.ranks) {
    throw Error(ErrorCode::invalid_argument, fmt::format("target rank {} of {}", to_int(target), state_->to.ranks));
  }
  Plan plan;
  plan.target = target;
  const std::int32_t section = state_->to_section[static_cast<std::size_t>(to_int(target))];
  if (section < 0) return plan;
  plan.wanted = state_->to.sections[static_cast<std::size_t>(section)].manifest;

  struct Placed {
    Shares shares;
    std::uint32_t first_set = 0;
  };
  const std::vector<std::uint32_t>& classes = state_->classes_of(static_cast<std::uint32_t>(section));
  std::vector<std::optional<Placed>> known(state_->target_class_of.size());
  std::size_t pieces = 0;
  for (const std::uint32_t id : classes) {
    if (id == State::by_value) continue;
    if (!known[id]) {
      const State::TargetClass& target_class = state_->target_class_of[id];
      const Extents& shape = state_->source_class_of[target_class.source_class]->shape;
      const std::vector<PlacedBox> wanted = state_->layouts.layout(target_class.layout).boxes_of(shape, target);
      known[id].emplace();
      if (!wanted.empty()) known[id]->shares = state_->index_of(target_class.source_class).share_out(wanted, target);
      known[id]->first_set = static_cast<std::uint32_t>(plan.holder_sets.size());
      for (auto& set : known[id]->shares.holder_sets) plan.holder_sets.push_back(std::move(set));
    }
    pieces += known[id]->shares.shares.size();
  }
  plan.pieces.reserve(pieces);
  for (std::uint32_t t = 0; t < classes.size(); ++t) {
    if (classes[t] == State::by_value) continue;
    const Placed& placed = *known[classes[t]];
    for (const Share& share : placed.shares.shares) {
      plan.pieces.push_back({TensorId{t}, share.box, placed.first_set + share.holders});
    }
    const TensorKey& key = plan.wanted->tensors[t].spec.key;
    for (const Box& gap : placed.shares.gaps) plan.gaps.push_back({key.fqn, key.state, gap, target});
  }
  return plan;
}

}  // namespace shardwire
