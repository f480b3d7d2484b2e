// SPDX-License-Identifier: Apache-2.0
#include "memory/kernel_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "shardwire/error.hpp"

namespace shardwire::memory {
namespace {

// Below the first length, processors differ most in the fixed cost of a run; from the second length on, a run is a
// part.
constexpr std::size_t class_ends[] = {1024, 16384};

constexpr std::string_view class_names[] = {
    "runs to 1 KiB",           "runs to 16 KiB",           "longer runs",
    "runs to 1 KiB, digested", "runs to 16 KiB, digested", "longer runs, digested",
};

double median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

}  // namespace

CopyClass::CopyClass(std::size_t run_bytes, bool kept)
    : index_(static_cast<std::size_t>(std::lower_bound(std::begin(class_ends), std::end(class_ends), run_bytes) -
                                      std::begin(class_ends)) +
             (kept ? 3 : 0)) {
}

std::array<CopyClass, 6> CopyClass::all() {
  const auto at = [](std::size_t index) { return CopyClass(index); };
  return {at(0), at(1), at(2), at(3), at(4), at(5)};
}

std::string_view CopyClass::name() const {
  return class_names[index_];
}

KernelChoice::KernelChoice(std::span<const CopyKernel> kernels) : kernels_(kernels) {
  for (const CopyKernel& kernel : kernels) {
    if (kernel.has_feature()) candidates_.push_back(&kernel);
  }
  for (State& state : states_) {
    for (const CopyKernel* kernel : candidates_) state.rivals.push_back({kernel});
    state.best = candidates_.front();
  }
}

const CopyKernel* KernelChoice::made(CopyClass kind) const {
  if (const CopyKernel* forced = forced_) return forced;
  const State& state = states_[kind.index()];
  return state.made ? state.best.load() : nullptr;
}

const CopyKernel& KernelChoice::best(CopyClass kind) const {
  const CopyKernel* forced = forced_;
  return forced != nullptr ? *forced : *states_[kind.index()].best;
}

const CopyKernel& KernelChoice::candidate(CopyClass kind) const {
  const std::lock_guard lock(mutex_);
  const std::vector<Rival>& rivals = states_[kind.index()].rivals;
  return *std::ranges::min_element(rivals, {}, [](const Rival& one) { return one.samples.size(); })->kernel;
}

void KernelChoice::record(CopyClass kind, const CopyKernel& kernel, double bytes_per_second) {
  const std::lock_guard lock(mutex_);
  State& state = states_[kind.index()];
  const auto of_kernel = std::ranges::find(state.rivals, &kernel, &Rival::kernel);
  if (state.made || of_kernel == state.rivals.end()) return;  // by other threads, meanwhile
  of_kernel->samples.push_back(kernel.stores == Stores::cached ? bytes_per_second / cached_handicap : bytes_per_second);
  const auto wanted = static_cast<std::size_t>(samples_of_round[state.round]);
  const bool over = std::ranges::all_of(state.rivals, [&](const Rival& one) { return one.samples.size() >= wanted; });
  if (over || state.round == 0) rank(state, over);
}

// Sets the fastest so far, and begins the next round after one that is over.
void KernelChoice::rank(State& state, bool over) {
  const auto speed = [](const Rival& one) { return median(one.samples); };
  const auto fastest = std::ranges::max_element(state.rivals, {}, speed);
  state.best = fastest->kernel;
  if (!over) return;
  const double least = speed(*fastest) * clearly_slower;
  const bool last = ++state.round == samples_of_round.size();
  std::erase_if(state.rivals, [&](const Rival& one) { return last ? one.kernel != state.best : speed(one) < least; });
  for (Rival& one : state.rivals) one.samples.clear();
  state.made = state.rivals.size() == 1;
}

bool KernelChoice::begin_with(std::string_view kind, std::string_view kernel) {
  const auto kinds = CopyClass::all();
  const auto found_kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const CopyClass& one) { return one.name() == kind; });
  const auto found =
      std::find_if(candidates_.begin(), candidates_.end(), [&](const CopyKernel* one) { return one->name == kernel; });
  if (found_kind == kinds.end() || found == candidates_.end()) return false;
  const std::lock_guard lock(mutex_);
  State& state = states_[found_kind->index()];
  if (state.made) return false;
  state.best = *found;
  state.made = true;
  return true;
}

std::array<KernelChoice::Chosen, 6> KernelChoice::chosen() const {
  const auto of = [this](CopyClass kind) { return Chosen{kind, best(kind).name, made(kind) != nullptr}; };
  const auto all = CopyClass::all();
  return {of(all[0]), of(all[1]), of(all[2]), of(all[3]), of(all[4]), of(all[5])};
}

void KernelChoice::force(std::string_view name) {
  if (name.empty()) {
    forced_ = nullptr;
    return;
  }
  const auto kernel =
      std::find_if(kernels_.begin(), kernels_.end(), [&](const CopyKernel& k) { return k.name == name; });
  if (kernel == kernels_.end()) {
    std::vector<std::string_view> names;
    for (const CopyKernel* candidate : candidates_) names.push_back(candidate->name);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' is no copy kernel; this processor has {}", name, fmt::join(names, ", ")));
  }
  if (!kernel->has_feature()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the copy kernel '{}' needs {}, which this processor lacks", name, kernel->feature));
  }
  forced_ = &*kernel;
}

KernelChoice& kernel_choice() {
  static KernelChoice choice(copy_kernels());
  return choice;
}

}  // namespace shardwire::memory
