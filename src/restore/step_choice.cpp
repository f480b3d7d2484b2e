// SPDX-License-Identifier: Apache-2.0
#include "restore/step_choice.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::restore {

std::map<StateOf, StepChoice::Records> StepChoice::grouped(const Records& published) {
  std::map<StateOf, Records> steps;
  for (const auto& record : published) steps[StateOf::of(record)].push_back(record);
  return steps;
}

StepChoice::Records StepChoice::next(const Records& published) {
  auto steps = grouped(published);
  std::erase_if(incomplete_, [&](const auto& one) {
    const auto now = steps.find(one.first);
    return now == steps.end() || now->second != one.second.records;
  });
  for (auto& [step, records] : steps) {
    if (!incomplete_.contains(step)) return std::move(records);
  }
  return {};
}

bool StepChoice::is_exhausted(const Records& published) const {
  return std::ranges::all_of(grouped(published), [&](const auto& step) {
    const auto known = incomplete_.find(step.first);
    return known != incomplete_.end() && known->second.records == step.second;
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
