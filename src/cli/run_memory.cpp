// SPDX-License-Identifier: Apache-2.0
#include "cli/run_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "cli/run_buffers.hpp"
#include "cli/text.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire::cli {
namespace {

constexpr ByteCount per_member = 24u << 20;  // code, fabric, bookkeeping: observed in small jobs

// Memory that this process may still use: of the machine, or of its control group if that is less.
std::optional<ByteCount> available_memory() {
  std::optional<ByteCount> available;
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name && std::getline(file, rest);) {
    if (name == "MemAvailable:") available = std::stoull(rest) * 1024;
  }
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");
  std::ifstream used_file("/sys/fs/cgroup/memory.current");
  ByteCount limit = 0;
  ByteCount used = 0;
  if (limit_file >> limit && used_file >> used) {  // "max" is no number
    const ByteCount unused = limit > used ? limit - used : 0;
    available = available ? std::min(*available, unused) : unused;
  }
  return available;
}

}  // namespace

void require_memory(const Case& job, const RunOptions& options) {
  if (options.memory == MemoryKind::cuda) return;  // device memory: the runtimes report exhaustion
  ByteCount arenas = 0;
  for (const CaseSide* side : {&job.source, &job.target}) {
    for (std::int32_t rank = 0; rank < side->ranks; ++rank) {
      arenas = support::add(arenas, arena_bytes(*side, Rank{rank}), "the memory of all ranks");
    }
  }
  const ByteCount members = static_cast<ByteCount>(members_of(job, options));
  const ByteCount needed = support::add(arenas, members * per_member, "the memory of all ranks");
  const auto text = [](ByteCount bytes) { return human_bytes(static_cast<double>(bytes)); };
  if (const auto available = available_memory(); available && *available < needed) {
    throw Error(
        ErrorCode::out_of_resources,
        fmt::format("the job needs {} of memory on this host (all source and target ranks are here), {} are free; "
                    "\"layers\" in the case file makes it smaller",
                    text(needed), text(*available)));
  }
}

}  // namespace shardwire::cli
