// SPDX-License-Identifier: Apache-2.0
#include "memory/strided_copy.hpp"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "support/checked.hpp"

namespace shardwire::memory {
namespace {

ByteCount to_bytes(Extent elements, ByteCount item_bytes, const char* what) {
  if (elements < 0) throw Error(ErrorCode::invalid_argument, std::string(what) + " is negative");
  return support::multiply(static_cast<ByteCount>(elements), item_bytes, what);
}

void check_side(const Box& box, const PlacedBox& side, const char* name) {
  const bool fits = side.box.dims() == box.dims() && side.box.offset.size() == box.dims() &&
                    box.offset.size() == box.dims() && side.local_strides.size() == box.dims();
  if (!fits || !contains(side.box, box)) {
    throw Error(ErrorCode::invalid_argument,
                "copy of box " + to_string(box) + " outside of its " + name + " box " + to_string(side.box));
  }
}

ByteCount first_byte(const Box& box, const PlacedBox& side, ByteCount item_bytes) {
  Extent element = side.local_offset;
  for (std::size_t dim = 0; dim < box.dims(); ++dim) {
    const Extent skipped = box.offset[dim] - side.box.offset[dim];
    element =
        support::add(element, support::multiply(skipped, side.local_strides[dim], "local offset"), "local offset");
  }
  return to_bytes(element, item_bytes, "local offset");
}

// Shorter runs use cached stores unless they are whole lines: too much of them are partial lines.
constexpr ByteCount min_streamed_bytes = 512;
constexpr ByteCount min_streamed_lines = 2;
// With cached stores, shorter runs are no faster in parallel.
constexpr ByteCount min_side_by_side_bytes = 512;

template <std::size_t Size>
void copy_fixed(const std::byte* source, std::byte* target, ByteCount runs, ByteCount source_step,
                ByteCount target_step) {
  for (ByteCount run = 0; run < runs; ++run) {
    std::memcpy(target + run * target_step, source + run * source_step, Size);
  }
}

void copy_any(const std::byte* source, std::byte* target, ByteCount runs, ByteCount source_step, ByteCount target_step,
              ByteCount size) {
  for (ByteCount run = 0; run < runs; ++run) {
    std::memcpy(target + run * target_step, source + run * source_step, size);
  }
}

}  // namespace

StridedCopy::StridedCopy(const Box& box, const PlacedBox& source, const PlacedBox& target, ByteCount item_bytes) {
  if (item_bytes == 0) throw Error(ErrorCode::invalid_argument, "copy of elements of zero bytes");
  check_side(box, source, "source");
  check_side(box, target, "target");
  if (box.empty()) return;

  source_offset_ = first_byte(box, source, item_bytes);
  target_offset_ = first_byte(box, target, item_bytes);
  run_bytes_ = item_bytes;
  runs_ = 1;
  source_end_ = source_offset_;
  target_end_ = target_offset_;
  // Innermost first; reversed below so that run() walks outermost first.
  for (std::size_t dim = box.dims(); dim-- > 0;) {
    const auto count = static_cast<ByteCount>(box.size[dim]);
    if (count == 1) continue;
    const ByteCount from = to_bytes(source.local_strides[dim], item_bytes, "source stride");
    const ByteCount to = to_bytes(target.local_strides[dim], item_bytes, "target stride");
    source_end_ = support::add(source_end_, support::multiply(count - 1, from, "source span"), "source span");
    target_end_ = support::add(target_end_, support::multiply(count - 1, to, "target span"), "target span");
    if (outer_dims_ == 0 && from == run_bytes_ && to == run_bytes_) {
      run_bytes_ = support::multiply(run_bytes_, count, "run");
      continue;
    }
    runs_ = support::multiply(runs_, count, "runs");
    if (outer_dims_ > 0) {
      const std::size_t inner = outer_dims_ - 1;
      ByteCount inner_from = 0;
      ByteCount inner_to = 0;
      const bool overflow = __builtin_mul_overflow(counts_[inner], source_strides_[inner], &inner_from) ||
                            __builtin_mul_overflow(counts_[inner], target_strides_[inner], &inner_to);
      if (!overflow && from == inner_from && to == inner_to) {
        counts_[inner] *= count;
        continue;
      }
    }
    counts_[outer_dims_] = count;
    source_strides_[outer_dims_] = from;
    target_strides_[outer_dims_] = to;
    ++outer_dims_;
  }

  const auto outer = static_cast<std::ptrdiff_t>(outer_dims_);
  std::reverse(counts_.begin(), counts_.begin() + outer);
  std::reverse(source_strides_.begin(), source_strides_.begin() + outer);
  std::reverse(target_strides_.begin(), target_strides_.begin() + outer);
  source_end_ = support::add(source_end_, item_bytes, "source span");
  target_end_ = support::add(target_end_, item_bytes, "target span");
  (void)support::multiply(run_bytes_, runs_, "bytes of a copy");
}

void StridedCopy::check_runs(ByteCount first_run, ByteCount count) const {
  if (first_run > runs_ || count > runs_ - first_run) {
    throw Error(ErrorCode::invalid_argument, "copy of runs past the last one");
  }
}

bool StridedCopy::is_streamed(const std::byte* target) const {
  if (run_bytes_ >= min_streamed_bytes) return true;
  ByteCount out_of_line = reinterpret_cast<std::uintptr_t>(target + target_offset_) | run_bytes_;
  for (std::size_t dim = 0; dim < outer_dims_; ++dim) out_of_line |= target_strides_[dim];
  return run_bytes_ >= min_streamed_lines * line_bytes && out_of_line % line_bytes == 0;
}

void StridedCopy::run(const std::byte* source, std::byte* target, ByteCount first_run, ByteCount count,
                      Stores stores) const {
  const ByteCount from_step = source_step();
  const ByteCount to_step = target_step();
  const ByteCount size = run_bytes_;
  const auto copy_with = [&](auto& copier) {
    visit_rows(first_run, count, [&](ByteCount from, ByteCount to, ByteCount runs) {
      for (ByteCount run = 0; run < runs; ++run) {
        copier.add(target + to + run * to_step, source + from + run * from_step, size);
      }
    });
    copier.finish();
  };
  if (stores == Stores::streaming && is_streamed(target)) {
    StreamingCopier copier(kernel_choice(), CopyClass(size, false), count * size);
    return copy_with(copier);
  }
  if (stores == Stores::cached && count > 1 && size >= min_side_by_side_bytes) {
    RangeCopier copier(cached_kernel());
    return copy_with(copier);
  }
  visit_rows(first_run, count, [=](ByteCount from, ByteCount to, ByteCount runs) {
    // A memcpy of constant size becomes one load and one store: for short runs the call would dominate.
    switch (size) {
      case 1: return copy_fixed<1>(source + from, target + to, runs, from_step, to_step);
      case 2: return copy_fixed<2>(source + from, target + to, runs, from_step, to_step);
      case 4: return copy_fixed<4>(source + from, target + to, runs, from_step, to_step);
      case 8: return copy_fixed<8>(source + from, target + to, runs, from_step, to_step);
      case 16: return copy_fixed<16>(source + from, target + to, runs, from_step, to_step);
      case 32: return copy_fixed<32>(source + from, target + to, runs, from_step, to_step);
      default: return copy_any(source + from, target + to, runs, from_step, to_step, size);
    }
  });
}

void StridedCopy::make_dense(ByteCount& offset, ByteCount& past, Strides& strides) const {
  offset = 0;
  past = bytes();
  ByteCount inner = run_bytes_;
  for (std::size_t dim = outer_dims_; dim-- > 0;) {
    strides[dim] = inner;
    inner *= counts_[dim];
  }
}

StridedCopy StridedCopy::into_dense() const {
  StridedCopy half = *this;
  half.make_dense(half.target_offset_, half.target_end_, half.target_strides_);
  return half;
}

StridedCopy StridedCopy::from_dense() const {
  StridedCopy half = *this;
  half.make_dense(half.source_offset_, half.source_end_, half.source_strides_);
  return half;
}

StridedCopy StridedCopy::reversed() const {
  StridedCopy back = *this;
  std::swap(back.source_offset_, back.target_offset_);
  std::swap(back.source_end_, back.target_end_);
  std::swap(back.source_strides_, back.target_strides_);
  return back;
}

void StridedCopy::update_spans() {
  runs_ = 1;
  source_end_ = source_offset_ + run_bytes_;
  target_end_ = target_offset_ + run_bytes_;
  for (std::size_t dim = 0; dim < outer_dims_; ++dim) {
    runs_ *= counts_[dim];
    source_end_ += (counts_[dim] - 1) * source_strides_[dim];
    target_end_ += (counts_[dim] - 1) * target_strides_[dim];
  }
}

StridedCopy StridedCopy::part(ByteCount first, ByteCount count) const {
  StridedCopy part = *this;
  if (outer_dims_ == 0) {
    part.source_offset_ += first;
    part.target_offset_ += first;
    part.run_bytes_ = count;
  } else {
    part.source_offset_ += first * source_strides_[0];
    part.target_offset_ += first * target_strides_[0];
    part.counts_[0] = count;
    if (count == 1) {  // one dim less
      for (auto* of : {&part.counts_, &part.source_strides_, &part.target_strides_}) {
        std::copy(of->begin() + 1, of->begin() + static_cast<std::ptrdiff_t>(outer_dims_), of->begin());
      }
      --part.outer_dims_;
    }
  }
  part.update_spans();
  return part;
}

void StridedCopy::split(ByteCount limit_bytes, std::vector<StridedCopy>& parts) const {
  if (bytes() <= limit_bytes) {
    if (bytes() > 0) parts.push_back(*this);
    return;
  }
  const ByteCount count = outer_dims_ == 0 ? run_bytes_ : counts_[0];
  const ByteCount step = std::max<ByteCount>(1, limit_bytes / (bytes() / count));
  for (ByteCount first = 0; first < count; first += step) {
    part(first, std::min(step, count - first)).split(limit_bytes, parts);
  }
}

PlacedBox packed(const Box& box) {
  return {box, 0, row_major_strides(box.size)};
}

}  // namespace shardwire::memory
