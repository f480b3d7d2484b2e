// SPDX-License-Identifier: Apache-2.0
// Runs of members, as bytes inside Roster and MembershipChanges.
#include "wire/runs.hpp"

#include <array>

#include "fuzz/target.hpp"

namespace shardwire::fuzz {

void runs(Input input) {
  const std::array<std::byte, 8> word{};  // of the message around the bytes; only its errors are used
  const wire::Input in("runs", word);
  const Allocation allocation;
  const auto decoded = accepted([&] { return wire::decode_runs(input, in); });
  allocation.require_at_most(input.size(), 100, 4096);
  if (!decoded) return;
  std::int64_t end = 0;
  for (const wire::MemberRun& run : *decoded) {
    require(run.first >= end && run.count >= 1, "runs are ascending and disjoint");
    end = std::int64_t{run.first} + run.count;
    require(end <= std::int64_t{wire::max_rank} + 1, "members have numbers of a job");
    require(run.layout_rank >= 0 && std::int64_t{run.layout_rank} + run.count <= std::int64_t{wire::max_rank} + 1,
            "layout ranks are ranks of a job");
    require(run.group != 0 || run.layout_rank == 0, "group 0 has no layout ranks");
  }
  const Bytes encoded = wire::encode_runs(*decoded);
  require(encoded.size() <= input.size(), "the encoder's form is the shortest");
  require(wire::decode_runs(encoded, in) == *decoded, "runs survive being encoded");
}

}  // namespace shardwire::fuzz
