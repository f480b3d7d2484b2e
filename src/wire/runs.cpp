// SPDX-License-Identifier: Apache-2.0
#include "wire/runs.hpp"

#include <fmt/format.h>

#include "wire/varint.hpp"

namespace shardwire::wire {

namespace {

constexpr std::uint64_t many = 1;   // bits of a run's first number
constexpr std::uint64_t fresh = 2;  // another group or shift than the run before
constexpr std::int64_t member_end = std::int64_t{max_rank} + 1;

/// The state that the next run is compared with. Group 0 has no shift: the last one stays.
struct Last {
  std::int64_t end = 0;  // first member after the run
  std::uint32_t group = 0;
  std::int64_t shift = 0;  // layout rank - member
};

class RunReader {
 public:
  RunReader(std::span<const std::byte> bytes, const Input& in) : bytes_(bytes, in), in_(in) {}
  [[nodiscard]] bool done() const { return bytes_.done(); }

  MemberRun next() {
    const std::uint64_t head = bytes_.number();
    const std::uint64_t gap = head >> 2;
    if (gap > static_cast<std::uint64_t>(member_end)) in_.reject("has a run past the last member number");
    const std::int64_t first = last_.end + static_cast<std::int64_t>(gap);
    const std::int64_t count = (head & many) == 0 ? 1 : 2 + bytes_.number(member_end, "count");
    if (first + count > member_end) in_.reject("has a run past the last member number");
    if ((head & fresh) != 0) change();
    last_.end = first + count;
    const std::int64_t layout_rank = last_.group == 0 ? 0 : first + last_.shift;
    if (layout_rank < 0 || (last_.group != 0 && layout_rank + count > member_end)) {
      in_.reject(fmt::format("has layout rank {}", layout_rank));
    }
    return {static_cast<std::int32_t>(first), static_cast<std::int32_t>(count), static_cast<std::int32_t>(layout_rank),
            last_.group};
  }

 private:
  void change() {
    last_.group = static_cast<std::uint32_t>(bytes_.number(0xffffffff, "group"));
    if (last_.group == 0) return;
    // Two shifts of legal layout ranks differ by less than twice the range of members.
    const std::int64_t by = unzigzag(bytes_.number());
    if (by < -2 * member_end || by > 2 * member_end) in_.reject("has a layout rank that no member can have");
    last_.shift += by;
  }

  VarintReader bytes_;
  const Input& in_;
  Last last_;
};

}  // namespace

Bytes encode_runs(std::span<const MemberRun> runs) {
  Bytes out;
  Last last;
  for (const MemberRun& run : runs) {
    if (run.count < 1 || run.first < last.end) {
      throw Error(ErrorCode::invalid_argument, "runs of members that are not ascending and disjoint");
    }
    const std::int64_t shift = run.group == 0 ? last.shift : std::int64_t{run.layout_rank} - run.first;
    const bool changed = run.group != last.group || shift != last.shift;
    put_varint(out, static_cast<std::uint64_t>(run.first - last.end) << 2 | (run.count > 1 ? many : 0) |
                        (changed ? fresh : 0));
    if (run.count > 1) put_varint(out, static_cast<std::uint64_t>(run.count) - 2);
    if (changed) {
      put_varint(out, run.group);
      if (run.group != 0) put_varint(out, zigzag(shift - last.shift));
    }
    last = {std::int64_t{run.first} + run.count, run.group, shift};
  }
  return out;
}

std::vector<MemberRun> decode_runs(std::span<const std::byte> bytes, const Input& in) {
  std::vector<MemberRun> runs;
  RunReader reader(bytes, in);
  while (!reader.done()) {
    if (runs.size() == max_boxes_per_message) in.reject(fmt::format("has more than {} runs", max_boxes_per_message));
    runs.push_back(reader.next());
  }
  return runs;
}

}  // namespace shardwire::wire
