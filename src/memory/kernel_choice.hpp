// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "memory/kernels.hpp"

namespace shardwire::memory {

/// The criteria for choosing a kernel: the length of runs, and whether copied bytes are kept to be digested.
class CopyClass {
 public:
  CopyClass(std::size_t run_bytes, bool kept);
  static std::array<CopyClass, 6> all();

  [[nodiscard]] std::size_t index() const { return index_; }
  [[nodiscard]] std::string_view name() const;  ///< "runs to 1 KiB", "longer runs, digested"

 private:
  explicit CopyClass(std::size_t index) : index_(index) {}
  std::size_t index_;
};

/// Finds the fastest kernel on this processor by trying each on real work. A copying thread asks for a candidate, copies with
/// it and reports its speed. A few samples rule out what is clearly slower. Among the others many samples decide, for good,
/// because the first copies of a process are unlike those that follow: they stay within the process, in other pages than
/// those that peers map, and their bytes may lie in a cache.
/// Threads: any, concurrently.
class KernelChoice {
 public:
  /// Of each kernel, by round. Their median counts.
  static constexpr std::array<int, 2> samples_of_round{4, 40};
  /// A kernel slower than this share of the fastest is out after the first round.
  static constexpr double clearly_slower = 0.6;
  /// Stores left in the caches are written back later, at the expense of other work: for copies that fit the caches,
  /// `memcpy` has appeared up to 1.17 times as fast as kernels that are in fact faster.
  static constexpr double cached_handicap = 1.25;

  /// Candidates are the kernels whose feature the processor has. Requires: at least one. Ownership: borrowed.
  explicit KernelChoice(std::span<const CopyKernel> kernels);

  /// The choice, once made; null while candidates are tried.
  [[nodiscard]] const CopyKernel* made(CopyClass kind) const;
  /// The choice, or the fastest so far: for copies that are too small to measure.
  [[nodiscard]] const CopyKernel& best(CopyClass kind) const;
  /// A kernel with the fewest samples of this round.
  [[nodiscard]] const CopyKernel& candidate(CopyClass kind) const;
  void record(CopyClass kind, const CopyKernel& kernel, double bytes_per_second);
  /// Sets the choice for the class of this name, as made earlier on an equal processor, so that nothing is tried.
  /// Returns false and changes nothing if there is no such class or candidate, or if the choice is already made.
  bool begin_with(std::string_view kind, std::string_view kernel);

  /// The state of all classes, for reports.
  struct Chosen {
    CopyClass kind;
    std::string_view kernel;
    bool made;  ///< false: the fastest so far
  };
  [[nodiscard]] std::array<Chosen, 6> chosen() const;

  /// Uses this kernel from now on for all classes; an empty name ends that.
  /// Errors: throws Error{invalid_argument} for an unknown name, and for a kernel that this processor cannot run.
  void force(std::string_view name);

 private:
  struct Rival {
    const CopyKernel* kernel = nullptr;
    std::vector<double> samples{};  // of this round, bytes per second
  };
  struct State {
    std::vector<Rival> rivals;  // that are left
    std::size_t round = 0;
    std::atomic<const CopyKernel*> best{nullptr};
    std::atomic<bool> made = false;
  };

  static void rank(State& state, bool over);

  std::span<const CopyKernel> kernels_;
  std::vector<const CopyKernel*> candidates_;
  std::atomic<const CopyKernel*> forced_ = nullptr;
  mutable std::mutex mutex_;  // guards rivals and rounds
  std::array<State, 6> states_;
};

/// The choice of this process.
KernelChoice& kernel_choice();

}  // namespace shardwire::memory
