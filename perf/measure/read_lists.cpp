// SPDX-License-Identifier: Apache-2.0
#include "perf/measure/read_lists.hpp"

#include <algorithm>

#include "memory/strided_copy.hpp"

namespace shardwire::perf {
namespace {

// A restore has the same limit, so longer runs are as many reads in both.
constexpr std::size_t max_read_bytes = 4u << 20;

}  // namespace

std::uint64_t ReadOrder::reads() const {
  std::uint64_t all = 0;
  for (const auto& [member, ranges] : from_member) all += ranges.size();
  return all;
}

ReadOrder read_order_of(const Setup& setup, const Case& job, int member, const StateMemory& held,
                        const StateMemory& wanted) {
  ReadOrder order;
  const auto target = target_of(setup, job, member);
  if (!target) return order;
  Planner planner = planner_of(setup, job);
  const Plan plan = planner.plan(*target);
  const Schedule schedule = planner.schedule(plan, job.source.lost);
  std::map<int, StateMemory> sources;
  for (const ScheduledPiece& item : schedule.items) {
    const int from = to_int(item.source);  // source ranks are the first members
    const StateMemory& source = sources.try_emplace(from, job.source, item.source).first->second;
    const TensorLayout& theirs = source.manifest().tensors[to_index(item.held)];
    const TensorId id = plan.pieces[item.piece].tensor;
    const TensorLayout& mine = wanted.manifest().tensors[to_index(id)];
    const Box& box = schedule.box(item);
    const memory::StridedCopy copy(box, placed_around(theirs, item.source, box), placed_around(mine, *target, box),
                                   item_size(mine.spec.dtype));
    const ByteCount first = source.offset_of(item.held);
    std::byte* const to = wanted.payload().data() + wanted.offset_of(id);
    copy.visit_runs([&](ByteCount source_bytes, ByteCount target_bytes) {
      for (std::size_t at = 0; at < copy.run_bytes();) {
        const std::size_t bytes = std::min<std::size_t>(max_read_bytes, copy.run_bytes() - at);
        if (from == member) {
          order.copies.push_back({held.payload().data() + first + source_bytes + at, to + target_bytes + at, bytes});
        } else {
          order.from_member[from].push_back({first + source_bytes + at, {to + target_bytes + at, bytes}});
        }
        at += bytes;
      }
    });
  }
  return order;
}

}  // namespace shardwire::perf
