// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "restore/publishers.hpp"
#include "shardwire/error.hpp"
#include "shardwire/report.hpp"
#include "wire/messages.hpp"

namespace shardwire::restore {

/// StepRule::newest_complete, and a step that several sessions have published: which state to plan next. A step that was planned and had no holder of some wanted element is
/// passed over, until its publications change; so is an older one that cannot be used.
class StepChoice {
 public:
  using Records = std::vector<wire::PublicationRecord>;

  /// The publications of the state to be preferred (by_preference()) of those that are not known to be incomplete; none if
  /// all are. `published`: at any step.
  /// Forgets steps whose publications have changed.
  /// `is_whole`, if given: states of earlier sessions for which it holds come before the others of these.
  Records next(const Records& published, const std::function<bool(const Records& state)>& is_whole = {});
  /// A plan over `records`, all of one step, had gaps; none: it cannot be used.
  void note_incomplete(const Records& records, const std::vector<Gap>& gaps);
  /// The step is looked at again: it was passed over because its sources had not described themselves.
  void forget(std::int64_t step) {
    std::erase_if(incomplete_, [&](const auto& one) { return one.first.step == step; });
  }
  /// Whether all steps are known to be incomplete, with the publications that they have now.
  [[nodiscard]] bool is_exhausted(const Records& published) const;
  void reset() { incomplete_.clear(); }

  /// The steps that are preferred to `taken` (by_preference()), the highest first. `published`: at any step.
  [[nodiscard]] std::vector<IncompleteStep> incomplete_before(const Records& published, const StateOf& taken) const;
  /// All incomplete steps, the highest first.
  [[nodiscard]] std::vector<IncompleteStep> incomplete() const;

 private:
  struct Passed {
    Records records;
    std::vector<Gap> gaps;
  };
  /// One of each step.
  static std::vector<IncompleteStep> listed(const std::map<StateOf, Passed>& passed);
  std::map<StateOf, Passed> incomplete_;
};

}  // namespace shardwire::restore
