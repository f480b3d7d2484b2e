// SPDX-License-Identifier: Apache-2.0
#include "memory/cuda/engine_calls.hpp"

#include <limits>

namespace shardwire::memory::cuda {
namespace {

constexpr ByteCount max_calls = 16;  // each costs the host some microseconds; not measured
constexpr ByteCount max_pitch = std::numeric_limits<int>::max();

bool is_pitch(ByteCount step, ByteCount run_bytes) {
  return step >= run_bytes && step <= max_pitch;
}

}  // namespace

std::vector<EngineCall> engine_calls(const StridedCopy& copy, ByteCount min_run_bytes) {
  if (copy.runs() == 0 || copy.run_bytes() < min_run_bytes) return {};
  const std::size_t dims = copy.outer_dims();
  // The last dim supplies the rows of a call.
  const ByteCount rows = dims == 0 ? 1 : copy.outer_dim(dims - 1).count;
  const ByteCount calls = copy.runs() / rows;
  const bool has_pitches =
      is_pitch(copy.source_step(), copy.run_bytes()) && is_pitch(copy.target_step(), copy.run_bytes());
  if (calls > max_calls || (rows > 1 && !has_pitches)) return {};

  std::vector<EngineCall> out;
  for (ByteCount call = 0; call < calls; ++call) {
    EngineCall one{copy.source_span().first, copy.target_span().first, rows};
    ByteCount rest = call;
    for (std::size_t dim = dims == 0 ? 0 : dims - 1; dim-- > 0;) {
      const StridedCopy::Dim outer = copy.outer_dim(dim);
      one.source_offset += rest % outer.count * outer.source_stride;
      one.target_offset += rest % outer.count * outer.target_stride;
      rest /= outer.count;
    }
    out.push_back(one);
  }
  return out;
}

}  // namespace shardwire::memory::cuda
