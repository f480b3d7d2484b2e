// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <sys/resource.h>
#include <time.h>

#include <span>

namespace shardwire::memory {

void RangeCopier::copy_first_half() {
  const std::span<const LineRun> parts(parts_.data(), count_);
  kernel_->copy(parts.first(lanes), parts.subspan(lanes));
  std::copy(parts_.begin() + lanes, parts_.end(), parts_.begin());
  count_ -= lanes;
}

void RangeCopier::finish() {
  if (count_ > lanes) copy_first_half();
  if (count_ > 0) kernel_->copy({parts_.data(), count_}, {});
  count_ = 0;
  if (kernel_->stores == Stores::streaming) store_fence();
}

StreamingCopier::StreamingCopier(KernelChoice& choice, CopyClass kind, std::size_t bytes)
    : choice_(choice),
      kind_(kind),
      measuring_(bytes >= slice_bytes && choice.made(kind) == nullptr),
      kernel_(measuring_ ? &choice.candidate(kind) : &choice.best(kind)),
      copier_(*kernel_),
      start_(measuring_ ? start() : Start{}) {
}

StreamingCopier::Start StreamingCopier::start() {
  rusage usage{};
  timespec used{};
  ::getrusage(RUSAGE_THREAD, &usage);
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);  // what other processes take meanwhile says nothing about the kernel
  return {std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec),
          usage.ru_minflt + usage.ru_majflt};
}

void StreamingCopier::add_measured(std::byte* target, const std::byte* source, std::size_t size, std::byte* kept) {
  for (std::size_t at = 0; at < size;) {
    const std::size_t part = std::min(size - at, slice_left_);
    copier_.add(target + at, source + at, part, kept == nullptr ? nullptr : kept + at);
    at += part;
    slice_left_ -= part;
    if (slice_left_ == 0) end_slice();
  }
}

void StreamingCopier::end_slice() {
  copier_.finish();
  const Start end = start();
  const double seconds = std::chrono::duration<double>(end.used - start_.used).count();
  // The first access to a page includes the page fault, whatever the kernel.
  if (end.page_faults == start_.page_faults && seconds > 0) {
    choice_.record(kind_, *kernel_, static_cast<double>(slice_bytes) / seconds);
  }
  kernel_ = choice_.made(kind_) != nullptr ? choice_.made(kind_) : &choice_.candidate(kind_);
  copier_.use(*kernel_);
  slice_left_ = slice_bytes;
  start_ = start();
}

}  // namespace shardwire::memory
