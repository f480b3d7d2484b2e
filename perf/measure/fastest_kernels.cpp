// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/fastest_kernels.hpp"

#include <array>
#include <cstddef>
#include <vector>

#include "memory/digest.hpp"
#include "memory/kernel_choice.hpp"
#include "memory/strided_copy.hpp"
#include "support/processor.hpp"

namespace shardwire::perf {

namespace {

// More than one core's share of the last-level cache, and several slices.
constexpr ByteCount copied_bytes = 32u << 20;
constexpr ByteCount run_lengths[] = {1u << 10, 16u << 10, 1u << 20};  // one of each class
// The first copy touches the target's pages, and some of the others may be disturbed.
constexpr int max_copies = 16;

struct alignas(memory::line_bytes) Line {
  std::array<std::byte, memory::line_bytes> bytes;
};

// Every other run of the source, as in a column of blocks.
memory::StridedCopy copy_of(ByteCount run_bytes) {
  const auto run = static_cast<Extent>(run_bytes);
  const Box box = Box::whole({static_cast<Extent>(copied_bytes / run_bytes), run});
  return {box, {box, 0, {2 * run, 1}}, memory::packed(box), 1};
}

}  // namespace

FastestKernels measure_kernels() {
  const memory::KernelChoice& choice = memory::kernel_choice();
  const std::vector<Line> source(2 * copied_bytes / sizeof(Line), Line{{std::byte{1}}});
  std::vector<Line> target(copied_bytes / sizeof(Line));
  const std::byte* const from = source.front().bytes.data();
  std::byte* const to = target.front().bytes.data();
  FastestKernels out{.processor = support::processor_model()};
  for (const bool digested : {false, true}) {
    for (const ByteCount run_bytes : run_lengths) {
      const memory::CopyClass kind(run_bytes, digested);
      const memory::StridedCopy copy = copy_of(run_bytes);
      double seconds = 0;
      for (int i = 0; i < max_copies && choice.made(kind) == nullptr; ++i) {
        if (digested) {
          memory::copy_and_digest(copy, from, to, memory::Stores::streaming, seconds);
        } else {
          copy.run_all(from, to, memory::Stores::streaming);
        }
      }
      if (const memory::CopyKernel* kernel = choice.made(kind)) {
        out.entries.push_back({std::string(kind.name()), std::string(kernel->name)});
      }
    }
  }
  return out;
}

}  // namespace shardwire::perf
