// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "case/models.hpp"

namespace shardwire {

/// How tensor parallelism splits a tensor of this name, and its expert. Weights of which nothing is known are not split.
struct Split {
  int dim = -1;         ///< -1: each rank of tensor parallelism has the whole
  int parts = 1;        ///< equal parts of the dim that are split each: 3 if queries, keys and values are one tensor
  int expert = -1;      ///< -1: of no expert
  bool sharded = true;  ///< FSDP splits dim 0

  bool operator==(const Split&) const = default;
};
/// A name of no module, for CaseTensor::split_as of what is not split.
inline constexpr std::string_view whole_module = "whole";
/// True for tensors of a vision tower, which no usual plan splits.
bool is_vision(std::string_view fqn);
Split split_of(std::string_view fqn);
/// The same for a tensor, if it has the dim.
inline Split split_of(const CaseTensor& tensor) {
  Split split = split_of(tensor.split_as.empty() ? tensor.fqn : tensor.split_as);
  if (split.dim >= static_cast<int>(tensor.shape.size())) split = {.expert = split.expert};
  return split;
}
/// "row", "col" or "rep": the dim that is split.
inline std::string_view word_of(const Split& split) {
  return split.dim < 0 ? "rep" : split.dim == 0 ? "row" : "col";
}
/// True for matrices that translate between tokens or positions and vectors: embeddings and lm_head.
bool is_embedding(std::string_view fqn);

}  // namespace shardwire
