// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "case/case.hpp"
#include "shardwire/plan.hpp"

namespace shardwire::cli {

struct PicturePiece {
  Rank source{};
  Rank target{};
  Box box;
  ByteCount bytes = 0;
};

/// The data about one tensor of a job, before drawing.
struct Picture {
  TensorSpec spec;
  std::string job;            ///< name of the case
  std::string source_layout;  ///< short text
  std::string target_layout;
  int source_ranks = 0;
  int target_ranks = 0;
  bool relabelled = false;
  std::vector<std::int32_t> processes;  ///< of each target rank
  std::vector<std::pair<Box, Rank>> held;
  std::vector<std::pair<Box, Rank>> wanted;
  std::vector<PicturePiece> pieces;
  std::vector<Flow> job_flows;  ///< of all tensors
  ByteCount job_bytes = 0;      ///< of all tensors, including local bytes

  /// Whether the piece stays in its process.
  [[nodiscard]] bool is_local(Rank source, Rank target) const {
    return processes[static_cast<std::size_t>(to_int(target))] == to_int(source);
  }
};

/// The tensor that `--tensor FQN[:state]` names; without a state the first one.
/// Errors: throws UsageError that suggests similar names if there is none, or that reports a tensor sent by value.
TensorKey find_tensor(const Case& job, const std::string& text);

/// Pieces as in the whole job's schedule. `processes`: empty for target rank i in process i.
/// Requires: the job has no gaps.
Picture picture_of(const Case& job, const TensorKey& key, const std::vector<std::int32_t>& processes);

}  // namespace shardwire::cli
