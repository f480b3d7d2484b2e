// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "support/deadline.hpp"
#include "transport/collective.hpp"

namespace shardwire::test {

/// The outcome of a round, once it has ended.
struct RoundResult {
  bool done = false;
  transport::Outcome outcome;
  transport::Completion completion() {
    return [this](const transport::Outcome& how) {
      done = true;
      outcome = how;
    };
  }
};

/// Drives the members of a group that exist, as run_until() does.
template <typename Met>
bool progress_until(const std::vector<std::unique_ptr<transport::Collective>>& members, Met met,
                    std::chrono::milliseconds at_most = std::chrono::seconds(10)) {
  return run_until(
      [&] {
        for (const auto& member : members) {
          if (member) member->progress();
        }
      },
      met, at_most);
}

}  // namespace shardwire::test
