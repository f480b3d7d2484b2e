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

/// What a kernel is chosen for: it depends on the length of runs, and on whether what is copied is kept, to be digested.
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

/// Which kernel is the fastest here, found by trying each on real work. Whoever copies asks for a candidate, copies with
/// it and says how fast it was; once each has its samples, the fastest of all samples is the answer for good.
/// Threads: any, at once.
class KernelChoice {
 public:
  static constexpr int samples_of_each = 4;  ///< the best counts: whatever disturbs a sample makes it slower
  /// What a kernel leaves in the caches is written later, in the time of others: from what fits the caches, `memcpy` has
  /// looked up to 1.17 times as fast as kernels which it is slower than.
  static constexpr double cached_handicap = 1.25;

  /// Of these, candidates are those whose feature the processor has. Requires: one at least. Ownership: borrowed.
  explicit KernelChoice(std::span<const CopyKernel> kernels);

  /// The choice, once it is made; null while candidates are tried.
  [[nodiscard]] const CopyKernel* made(CopyClass kind) const;
  /// The choice, or what is the fastest so far: for copies that are too small to measure.
  [[nodiscard]] const CopyKernel& best(CopyClass kind) const;
  /// One that has the fewest samples.
  [[nodiscard]] const CopyKernel& candidate(CopyClass kind) const;
  void record(CopyClass kind, const CopyKernel& kernel, double bytes_per_second);
  /// The choice for the class of this name, as it was made on a processor like this one, so that nothing is tried. False, and
  /// nothing is changed: there is no such class or candidate, or the choice is made already.
  bool begin_with(std::string_view kind, std::string_view kernel);

  /// Of all classes, for reports.
  struct Chosen {
    CopyClass kind;
    std::string_view kernel;
    bool made;  ///< or else the fastest so far
  };
  [[nodiscard]] std::array<Chosen, 6> chosen() const;

  /// This one from now on, for all; none when the name is empty.
  /// Errors: throws Error{invalid_argument} for a name that no kernel has, and for one that this processor cannot run.
  void force(std::string_view name);

 private:
  struct Samples {
    int count = 0;
    double best = 0;  // bytes per second
  };
  struct State {
    std::vector<Samples> samples;  // of each candidate
    std::atomic<const CopyKernel*> best{nullptr};
    std::atomic<bool> made = false;
  };

  std::span<const CopyKernel> kernels_;
  std::vector<const CopyKernel*> candidates_;
  std::atomic<const CopyKernel*> forced_ = nullptr;
  mutable std::mutex mutex_;  // guards samples
  std::array<State, 6> states_;
};

/// That of this process.
KernelChoice& kernel_choice();

}  // namespace shardwire::memory
