// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "support/job.hpp"

namespace shardwire::test {

/// Where the keeper of one of several hosts listens.
inline std::string socket_of_host(const std::string& job, int host) {
  return job + " host " + std::to_string(host);
}

/// One rank's state of a small model, by rows; each element tells its place and the step.
struct TrainedState {
  static constexpr Extent rows = 600;
  TrainedState(int rank, int ranks)
      : w({{"w", "exp_avg"}, DType::f32, {rows, 512}}, Layout::chunk(0, ranks), Rank{rank}),
        b({{"b", "exp_avg"}, DType::bf16, {rows}}, Layout::chunk(0, ranks), Rank{rank}),
        rank_(rank),
        ranks_(ranks) {}
  void set(std::int64_t step) {
    w.fill(static_cast<std::uint64_t>(step));
    b.fill(static_cast<std::uint64_t>(step));
  }
  [[nodiscard]] std::size_t wrong(std::int64_t step) {
    return w.wrong(static_cast<std::uint64_t>(step)) + b.wrong(static_cast<std::uint64_t>(step));
  }
  [[nodiscard]] Catalog held(std::int64_t step) {
    Catalog catalog = tensors();
    catalog.add_value({"", "step"}, step);
    return catalog;
  }
  [[nodiscard]] Catalog wanted() {
    Catalog catalog = tensors();
    catalog.add_value({"", "step"});
    return catalog;
  }

 private:
  Catalog tensors() {
    Catalog catalog(Rank{rank_}, ranks_);
    w.add_to(catalog);
    b.add_to(catalog);
    return catalog;
  }
  TestShard w;
  TestShard b;
  int rank_;
  int ranks_;
};

}  // namespace shardwire::test
