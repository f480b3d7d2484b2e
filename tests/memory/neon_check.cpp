// SPDX-License-Identifier: Apache-2.0
// Copies with every kernel for this kind of processor and compares byte by byte. Depends only on the kernels, so that
// it can be compiled for other processors and emulated: see neon_check.
#include <cstdio>
#include <vector>

#include "memory/kernels.hpp"

namespace {

using namespace shardwire::memory;

constexpr std::size_t line = line_bytes;
constexpr std::byte untouched{0xa5};

// Copies runs of several lengths with a cache line between them; sources and guard bytes are not aligned to lines.
bool copies_exactly(const CopyKernel& kernel, std::size_t shift, bool keep) {
  constexpr std::size_t lines[] = {1, 2, 3, 16, 5, 256, 1, 7, 64, 9, 2};
  constexpr std::size_t size = 512 * line;
  std::vector<std::byte> source(size + line);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>((i * 131) ^ (i >> 8));
  std::vector<std::byte> target(size + line, untouched);
  std::vector<std::byte> kept(size + line, untouched);
  std::vector<std::byte> expected = target;
  std::vector<std::byte> expected_kept = kept;

  std::byte* aligned = target.data();
  while (reinterpret_cast<std::size_t>(aligned) % line != 0) ++aligned;
  const std::size_t first = static_cast<std::size_t>(aligned - target.data());
  std::vector<LineRun> runs;
  std::size_t at = 0;
  for (const std::size_t count : lines) {
    runs.push_back({source.data() + at + shift, aligned + at, keep ? kept.data() + at + shift : nullptr, count});
    for (std::size_t i = 0; i < count * line; ++i) {
      expected[first + at + i] = source[at + shift + i];
      if (keep) expected_kept[at + shift + i] = source[at + shift + i];
    }
    at += (count + 1) * line;
  }
  const std::span<const LineRun> all(runs);
  kernel.copy(all.first(6), all.subspan(6));
  kernel.copy(all.subspan(6), {});
  store_fence();
  return target == expected && kept == expected_kept;
}

}  // namespace

int main() {
  int failed = 0;
  for (const CopyKernel& kernel : copy_kernels()) {
    bool right = kernel.has_feature();
    for (const std::size_t shift : {0, 1, 8, 63}) {
      for (const bool keep : {false, true}) right = right && copies_exactly(kernel, shift, keep);
    }
    std::printf("%s: %s\n", kernel.name.data(), right ? "right" : "WRONG");
    failed += right ? 0 : 1;
  }
  return failed == 0 ? 0 : 1;
}
