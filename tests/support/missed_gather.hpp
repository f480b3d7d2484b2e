// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "support/job.hpp"

namespace shardwire::test {

/// Gathers of members, each on a thread of its own, that other members never join. On a busy machine a gather may name a
/// member that was only late, so all repeat it under another name until every error names the missing ones alone, or
/// none does after many attempts.
class MissedGather {
 public:
  MissedGather(int present, std::vector<Rank> missing)
      : missing_(std::move(missing)), attempt_ends_(present, Decide{this}) {}

  /// The error of the last attempt. Call it once on each present member.
  Error on(Session& session) {
    for (int attempt = 0;; ++attempt) {
      try {
        const Error error =
            failure_of([&] { session.gather("missed " + std::to_string(attempt), {}, std::chrono::seconds(1)); });
        if (error.ranks() != missing_) late_ = true;
        attempt_ends_.arrive_and_wait();
        if (!again_ || attempt == max_attempts) return error;
      } catch (...) {
        attempt_ends_.arrive_and_drop();
        throw;
      }
    }
  }

 private:
  static constexpr int max_attempts = 20;
  struct Decide {
    MissedGather* self;
    void operator()() noexcept { self->again_ = self->late_.exchange(false); }
  };

  const std::vector<Rank> missing_;
  std::atomic<bool> late_ = false;
  std::atomic<bool> again_ = false;
  std::barrier<Decide> attempt_ends_;
};

}  // namespace shardwire::test
