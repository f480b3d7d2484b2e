// SPDX-License-Identifier: Apache-2.0
#include "cli/picture.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "cli/command.hpp"
#include "cli/relabel.hpp"
#include "shardwire/error.hpp"
#include "support/nearest.hpp"

namespace shardwire::cli {
namespace {

constexpr std::size_t near_shown = 5;

template <typename Visit>
void for_each_key(const Case& job, Visit visit) {
  for (const CaseSide* side : {&job.target, &job.source}) {
    for (const Section& section : side->layout.sections) {
      for (const TensorLayout& tensor : section.manifest->tensors) visit(tensor.spec.key);
    }
  }
}

[[noreturn]] void refuse_unknown(const Case& job, const std::string& text) {
  std::set<std::string> names;
  for_each_key(job, [&](const TensorKey& key) { names.insert(key.fqn); });
  std::vector<std::pair<std::size_t, std::string>> near;
  constexpr std::size_t longest = 512;  // bounds the work for a text that is not a name at all
  const std::string wanted = text.substr(0, longest);
  for (const std::string& name : names) {
    const bool part = name.find(wanted) != std::string::npos;
    near.emplace_back(part ? 0 : support::edit_distance(wanted, name.substr(0, longest)), name);
  }
  std::sort(near.begin(), near.end());
  near.resize(std::min(near.size(), near_shown));
  std::vector<std::string> shown;
  for (const auto& [far, name] : near) shown.push_back(name);
  throw UsageError(fmt::format("--tensor: there is no tensor '{}'; the nearest are {}", text, fmt::join(shown, ", ")));
}

const TensorLayout* find_in(const Section& section, const TensorKey& key) {
  const auto& tensors = section.manifest->tensors;
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& one) { return one.spec.key == key; });
  return found == tensors.end() ? nullptr : &*found;
}

// The side with only this tensor.
JobLayout only(const JobLayout& side, const TensorKey& key) {
  JobLayout result{side.ranks, {}};
  for (const Section& section : side.sections) {
    const TensorLayout* tensor = find_in(section, key);
    if (tensor == nullptr) continue;
    result.sections.push_back(
        {std::make_shared<const Manifest>(Manifest{section.manifest->ranks, {*tensor}}), section.ranks});
  }
  return result;
}

std::vector<std::pair<Box, Rank>> boxes_of(const JobLayout& side) {
  std::vector<std::pair<Box, Rank>> boxes;
  for (const Section& section : side.sections) {
    const TensorLayout& tensor = section.manifest->tensors.front();
    for (const Rank rank : section.ranks) {
      for (const PlacedBox& placed : tensor.layout.boxes_of(tensor.spec.shape, rank)) {
        boxes.emplace_back(placed.box, rank);
      }
    }
  }
  return boxes;
}

std::string layout_text(const JobLayout& side) {
  std::string text;
  for (const Section& section : side.sections) {
    const std::string one = section.manifest->tensors.front().layout.to_string();
    if (text.find(one) == std::string::npos) text += (text.empty() ? "" : "; ") + one;
  }
  return text;
}

// If every piece has one holder there is no choice, and the tensor can be planned alone.
bool has_choice(Planner& planner, const std::vector<Rank>& targets) {
  return std::any_of(targets.begin(), targets.end(), [&](Rank target) {
    const Plan plan = planner.plan(target);
    return std::any_of(plan.holder_sets.begin(), plan.holder_sets.end(), [](const auto& s) { return s.size() > 1; });
  });
}

}  // namespace

TensorKey find_tensor(const Case& job, const std::string& text) {
  std::optional<TensorKey> first;
  std::vector<std::string> states;  // of a tensor that precedes the last colon
  const std::size_t colon = text.rfind(':');
  for_each_key(job, [&](const TensorKey& key) {
    if (!first && (key.fqn == text || to_string(key) == text)) first = key;
    const bool seen = std::find(states.begin(), states.end(), key.state) != states.end();
    if (colon != std::string::npos && key.fqn == text.substr(0, colon) && !seen) states.push_back(key.state);
  });
  if (first) return *first;
  for (const TensorSpec& spec : job.by_value) {
    if (spec.key.fqn != text && to_string(spec.key) != text) continue;
    throw UsageError(fmt::format("--tensor: '{}' has one element and goes by value; there is nothing to draw", text));
  }
  if (!states.empty()) {
    const std::string state = text.substr(colon + 1);
    throw UsageError(fmt::format("--tensor: '{}' has no state '{}'{}", text.substr(0, colon), state,
                                 support::known_words(state, fmt::format("{}", fmt::join(states, ", ")))));
  }
  refuse_unknown(job, text);
}

Picture picture_of(const Case& job, const TensorKey& key, const std::vector<std::int32_t>& processes) {
  Picture picture;
  const JobLayout from = only(job.source.layout, key);
  const JobLayout to = only(job.target.layout, key);
  const Topology topology = topology_of(job, processes);
  const std::vector<Rank> targets = ranks_of(to);
  picture.spec = (to.sections.empty() ? from : to).sections.front().manifest->tensors.front().spec;
  if (volume_of(picture.spec.shape) == 0) {
    throw UsageError(fmt::format("--tensor: '{}' has no elements; there is nothing to draw", to_string(key)));
  }
  picture.job = job.name;
  picture.source_layout = layout_text(from);
  picture.target_layout = layout_text(to);
  picture.source_ranks = job.source.ranks;
  picture.target_ranks = job.target.ranks;
  picture.relabelled = !processes.empty();
  picture.processes = processes;
  for (std::int32_t t = 0; processes.empty() && t < job.target.ranks; ++t) picture.processes.push_back(t);
  picture.held = boxes_of(from);
  picture.wanted = boxes_of(to);

  Planner whole(job.source.layout, job.target.layout, topology);
  JobTotals totals = whole.totals();
  picture.job_flows = std::move(totals.flows);
  picture.job_bytes = totals.needed;
  Planner alone(from, to, topology);
  Planner& planner = has_choice(alone, targets) ? whole : alone;
  planner.each_transfer(targets, [&](const PlannedTransfer& transfer) {
    if (transfer.tensor.key == key)
      picture.pieces.push_back({transfer.source, transfer.target, transfer.box, transfer.bytes});
  });
  return picture;
}

}  // namespace shardwire::cli
