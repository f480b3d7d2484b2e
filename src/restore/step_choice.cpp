// SPDX-License-Identifier: Apache-2.0
#include "restore/step_choice.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::restore {

StepChoice::Records StepChoice::next(const Records& published,
                                     const std::function<bool(const Records& state)>& is_whole) {
  std::vector<PublishedState> states = by_preference(published);
  std::erase_if(incomplete_, [&](const auto& one) {
    const auto now = std::ranges::find(states, one.first, &PublishedState::of);
    return now == states.end() || now->records != one.second.records;
  });
  if (is_whole) {
    std::stable_partition(states.begin(), states.end(),
                          [&](const PublishedState& state) { return state.of.origin == 0 || is_whole(state.records); });
  }
  for (PublishedState& state : states) {
    if (!incomplete_.contains(state.of)) return std::move(state.records);
  }
  return {};
}

bool StepChoice::is_exhausted(const Records& published) const {
  return std::ranges::all_of(by_preference(published), [&](const PublishedState& state) {
    const auto known = incomplete_.find(state.of);
    return known != incomplete_.end() && known->second.records == state.records;
  });
}

void StepChoice::note_incomplete(const Records& records, const std::vector<Gap>& gaps) {
  incomplete_[StateOf::of(records.front())] = {records, gaps};
}

std::vector<IncompleteStep> StepChoice::incomplete_before(const Records& published, const StateOf& taken) const {
  if (incomplete_.empty()) return {};
  std::map<StateOf, Passed> preferred;
  for (const PublishedState& state : by_preference(published)) {
    if (state.of == taken) break;
    const auto known = incomplete_.find(state.of);
    if (known != incomplete_.end() && state.of.step != taken.step) preferred.insert(*known);
  }
  return listed(preferred);
}

std::vector<IncompleteStep> StepChoice::incomplete() const {
  return listed(incomplete_);
}

std::vector<IncompleteStep> StepChoice::listed(const std::map<StateOf, Passed>& passed) {
  std::vector<IncompleteStep> all;
  for (const auto& [which, one] : passed) {
    if (all.empty() || all.back().step != which.step) all.push_back({which.step, one.gaps});
  }
  return all;
}

}  // namespace shardwire::restore
