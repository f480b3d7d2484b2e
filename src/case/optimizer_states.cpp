// SPDX-License-Identifier: Apache-2.0
#include "case/optimizer_states.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "case/case.hpp"

namespace shardwire {
namespace {

bool is_matrix(const CaseTensor& tensor) {
  return tensor.shape.size() == 2;
}

std::vector<OptimizerState> only_common(const CaseTensor&, std::span<const Degrees>) {
  return {};
}

// Muon keeps a momentum of hidden matrices; AdamW keeps the rest.
std::vector<OptimizerState> of_muon(const CaseTensor& tensor, std::span<const Degrees>) {
  if (!is_matrix(tensor) || is_embedding(tensor.fqn)) return {};
  const Split split = split_of(tensor);
  return {{"master", "f32", tensor.shape, split}, {"momentum_buffer", "f32", tensor.shape, split}};
}

// Means over the columns and over the rows. Each is split where the dim that it has left is split.
std::vector<OptimizerState> of_adafactor(const CaseTensor& tensor, std::span<const Degrees>) {
  if (!is_matrix(tensor)) return {};
  const Split split = split_of(tensor);
  const int parts = split.parts;
  const Split of_rows{.dim = split.dim == 0 ? 0 : -1, .parts = split.dim == 0 ? parts : 1, .expert = split.expert};
  const Split of_columns{
      .dim = split.dim == 1 ? 0 : -1, .parts = split.dim == 1 ? parts : 1, .expert = split.expert, .sharded = false};
  return {{"master", "f32", tensor.shape, split},
          {"exp_avg_sq_row", "f32", {tensor.shape[0]}, of_rows},
          {"exp_avg_sq_col", "f32", {tensor.shape[1]}, of_columns}};
}

// Blocks of 256 elements share a scale. Tensors of one dim and small ones keep their states in 32 bits.
std::vector<OptimizerState> of_adam8bit(const CaseTensor& tensor, std::span<const Degrees> sides) {
  constexpr Extent block = 256;
  constexpr ElementCount least = 4096;
  if (!is_matrix(tensor) || std::min(tensor.shape[0], least) * std::min(tensor.shape[1], least) < least) return {};
  const Split split = split_of(tensor);
  for (const Degrees& side : sides) {
    const Extent parts = split.dim == 1 ? Extent{side.tensor} * split.parts : 1;
    if (tensor.shape[1] % (block * parts) == 0) continue;
    throw CaseError(fmt::format(
        "optimizer adam8bit: tensor {} has rows of {} elements, which{} do not make whole blocks of {}, so ranks would "
        "share the scale of a block: choose another optimizer{}",
        tensor.fqn, tensor.shape[1], parts == 1 ? "" : fmt::format(" in {} parts", parts), block,
        parts == 1 ? "" : " or less tensor parallelism"));
  }
  const Extents scales{tensor.shape[0], tensor.shape[1] / block};
  return {{"master", "f32", tensor.shape, split},
          {"state1", "u8", tensor.shape, split},
          {"absmax1", "f32", scales, split},
          {"state2", "u8", tensor.shape, split},
          {"absmax2", "f32", scales, split}};
}

}  // namespace

std::span<const Optimizer> optimizers() {
  static const std::vector<Optimizer> all{
      {"adamw", {"master", "exp_avg", "exp_avg_sq"}, only_common},
      {"adam8bit", {"master", "exp_avg", "exp_avg_sq"}, of_adam8bit},
      {"muon", {"master", "exp_avg", "exp_avg_sq"}, of_muon},
      {"adafactor", {"master", "exp_avg_sq"}, of_adafactor},
  };
  return all;
}

}  // namespace shardwire
