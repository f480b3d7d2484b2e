// SPDX-License-Identifier: Apache-2.0
#include "restore/step_choice.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::restore {

StepChoice::Records StepChoice::next(const Records& published) {
  std::vector<PublishedState> states = by_preference(published);
  std::erase_if(incomplete_, [&](const auto& one) {
    const auto now = std::ranges::find(states, one.first, &PublishedState::of);
    return now == states.end() || now->records != one.second.records;
  });
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

std::vector<IncompleteStep> StepChoice::incomplete_after(std::int64_t step) const {
  std::vector<IncompleteStep> all = incomplete();
  std::erase_if(all, [&](const IncompleteStep& one) { return one.step <= step; });
  return all;
}

std::vector<IncompleteStep> StepChoice::incomplete() const {
  std::vector<IncompleteStep> all;
  for (const auto& [which, passed] : incomplete_) {
    if (all.empty() || all.back().step != which.step) all.push_back({which.step, passed.gaps});
  }
  return all;
}

}  // namespace shardwire::restore
