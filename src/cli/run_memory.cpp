// SPDX-License-Identifier: Apache-2.0
#include "cli/run_memory.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <fstream>

#include "cli/run_buffers.hpp"
#include "cli/text.hpp"
#include "shardwire/error.hpp"
#include "support/checked.hpp"

namespace shardwire::cli {
namespace {

constexpr ByteCount per_member = 24u << 20;        // code, fabric, bookkeeping: seen on small jobs
constexpr ByteCount shared_per_member = 5u << 20;  // UCX's own queues: 4.2 MiB with 1.13

// What this process may still use: of the machine, and of its control group where that is smaller.
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

void require_memory(const Case& job, const RunOptions& options, bool shared) {
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
  struct statvfs shm {};
  if (!shared || ::statvfs("/dev/shm", &shm) != 0) return;
  const ByteCount free_shm = static_cast<ByteCount>(shm.f_bavail) * shm.f_frsize;
  const ByteCount needed_shm = support::add(arenas, members * shared_per_member, "the shared memory of all ranks");
  if (free_shm < needed_shm) {
    throw Error(ErrorCode::out_of_resources,
                fmt::format("the job needs {} of shared memory, /dev/shm has {} free; enlarge it (mount -o "
                            "remount,size=..) or make the job smaller by \"layers\" in the case file",
                            text(needed_shm), text(free_shm)));
  }
}

}  // namespace shardwire::cli
