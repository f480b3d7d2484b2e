// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "case/split.hpp"

namespace shardwire {

/// How one side of a job spreads its tensors: "fsdp=8,tp=2". Ranks are numbered replica by replica, then shard by shard, with
/// tensor parallelism innermost.
struct Degrees {
  int replicas = 1;  ///< ddp, or the first number of hsdp
  int shards = 1;    ///< fsdp, or the second number of hsdp
  int tensor = 1;    ///< tp
  int experts = 1;   ///< ep: groups within the shards, shard s in group s mod ep

  [[nodiscard]] int ranks() const { return replicas * shards * tensor; }
};

/// `where` begins messages: "--source". Errors: throws CaseError.
Degrees parse_degrees(std::string_view where, const std::string& text);

/// The rule of a case file for tensors that are split like this, in JSON. `group` of `groups` is that of the tensor's expert;
/// -1: none. Requires: `groups` is a multiple of degrees.experts.
std::string layout_json(const Degrees& degrees, const Split& split, int group, int groups);

}  // namespace shardwire
