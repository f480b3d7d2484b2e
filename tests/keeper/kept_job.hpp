// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "keeper/keeper.hpp"
#include "memory/shared_memory.hpp"
#include "support/job.hpp"

// Keepers in this process, and members of jobs that use them.
namespace shardwire::test::kept_job {

inline const TensorSpec weights{{"w", "exp_avg"}, DType::f32, {60, 16}};
inline const TensorSpec bias{{"b", "exp_avg"}, DType::bf16, {60}};

inline KeeperOptions named(const std::string& test) {
  return {.job = "keeper-test-" + std::to_string(::getpid()) + "-" + test};
}

using Allocate = decltype(shardwire::keeper::Keeper::Options::allocate);

inline std::unique_ptr<shardwire::keeper::Keeper> start(
    const KeeperOptions& options, ByteCount budget = 64u << 20, Allocate allocate = {},
    LogSink log = [](LogLevel, std::string_view) {}) {
  shardwire::keeper::Keeper::Options made;
  made.allocate = std::move(allocate);
  made.keeper = options;
  made.budget_bytes = budget;
  made.session = quick();
  made.log = std::move(log);
  return std::make_unique<shardwire::keeper::Keeper>(std::move(made));
}

/// Memory that a keeper takes.
class TakenMemory {
 public:
  Allocate allocate() {
    return [this](ByteCount bytes, int) {
      const auto memory = std::make_shared<memory::SharedMemory>(bytes, memory::SharedMemory::Pages::at_once);
      const std::lock_guard lock(mutex_);
      all_.push_back(memory);
      return memory;
    };
  }
  /// Flips a bit of the tensor `w` in each snapshot of a State.
  void rot() {
    constexpr std::size_t in_w = 500;  // wherever `b` lies, which has 120 bytes at most
    const std::lock_guard lock(mutex_);
    for (const auto& one : all_) {
      if (const auto memory = one.lock()) memory->address()[in_w] ^= std::byte{1};
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<memory::SharedMemory>> all_;  // guarded by mutex_
};

inline SessionOptions with(const KeeperOptions& keeper, std::vector<std::string>* warnings = nullptr) {
  SessionOptions options = quick();
  options.keeper = keeper;
  options.log = [warnings](LogLevel level, std::string_view text) {
    if (warnings != nullptr && level >= LogLevel::warning) warnings->emplace_back(text);
  };
  return options;
}

/// One rank of `ranks`, by rows. Values tell the step.
struct State {
  State(int rank, int ranks)
      : w(weights, Layout::chunk(0, ranks), Rank{rank}),
        b(bias, Layout::chunk(0, ranks), Rank{rank}),
        catalog(Rank{rank}, ranks) {
    w.add_to(catalog);
    b.add_to(catalog);
  }
  void set(std::int64_t step) {
    w.fill(static_cast<std::uint64_t>(step));
    b.fill(static_cast<std::uint64_t>(step));
    catalog = Catalog(catalog.layout_rank(), catalog.ranks());
    w.add_to(catalog);
    b.add_to(catalog);
    catalog.add_value({"", "step"}, step);
  }
  [[nodiscard]] std::size_t wrong(std::int64_t step) {
    return w.wrong(static_cast<std::uint64_t>(step)) + b.wrong(static_cast<std::uint64_t>(step));
  }
  TestShard w;
  TestShard b;
  Catalog catalog;
};

inline PublishOptions kept(std::int64_t step, int steps = 1) {
  return {.step = step, .keep = {.steps = steps}};
}

inline RestoreOptions newest() {
  RestoreOptions options = within(patience);
  options.step_rule = StepRule::newest_complete;
  return options;
}

/// Restores one rank of `ranks`; returns the step, after a check of all elements.
inline std::int64_t restored(Session& session, int rank, int ranks) {
  State state(rank, ranks);
  state.catalog.add_value({"", "step"});
  Restore restore = session.restore(state.catalog, newest());
  restore.wait();
  const std::int64_t step = restore.report().step.value();
  BOOST_TEST(state.wrong(step) == 0U);
  BOOST_TEST((restore.value({"", "step"}) == Value(step)));
  return step;
}

}  // namespace shardwire::test::kept_job
