// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "support/job.hpp"

// Shared by exchange_loss_test.cpp and the processes of its members.
namespace shardwire::test {

/// An exchange of three members in one buffer each. Two tensors swap their places, and each member takes over the part
/// of the next one: they go in two waves, because staging holds one of them.
struct Swap {
  ByteCount first_bytes = 0;  ///< of the whole tensor that goes in the first wave
  ByteCount second_bytes = 0;
  bool in_arena = false;           ///< peers can map the memory
  bool apart = false;              ///< the destination lies beside what is held: one wave
  bool replicated = false;         ///< members 1 and 2 hold all of both, and member 0 wants it
  ByteCount bytes_per_second = 0;  ///< that a member takes in; 0: no limit
  int deadline_seconds = 120;
};
inline std::span<const std::byte> bytes_of(const Swap& swap) {
  return std::as_bytes(std::span(&swap, 1));
}

/// The result of an exchange on one member.
struct Outcome {
  bool good = false;
  ErrorCode code{};
  std::vector<Rank> ranks;
  std::size_t gaps = 0;
  std::string text;  ///< of the error
};
inline Outcome outcome_from(std::span<const std::byte> frame) {
  Outcome outcome;
  std::uint32_t head[4] = {};  // good, code, ranks, gaps
  std::memcpy(head, frame.data(), sizeof head);
  outcome.good = head[0] != 0;
  outcome.code = static_cast<ErrorCode>(head[1]);
  outcome.gaps = head[3];
  frame = frame.subspan(sizeof head);
  for (std::uint32_t i = 0; i < head[2]; ++i) {
    std::int32_t rank = 0;
    std::memcpy(&rank, frame.data(), sizeof rank);
    outcome.ranks.push_back(Rank{rank});
    frame = frame.subspan(sizeof rank);
  }
  outcome.text.assign(reinterpret_cast<const char*>(frame.data()), frame.size());
  return outcome;
}
inline std::vector<std::byte> frame_of(const Outcome& outcome) {
  std::vector<std::byte> frame;
  const auto add = [&](const void* data, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(data);
    frame.insert(frame.end(), first, first + bytes);
  };
  const std::uint32_t head[4] = {outcome.good ? 1U : 0U, static_cast<std::uint32_t>(outcome.code),
                                 static_cast<std::uint32_t>(outcome.ranks.size()),
                                 static_cast<std::uint32_t>(outcome.gaps)};
  add(head, sizeof head);
  for (const Rank rank : outcome.ranks) {
    const std::int32_t number = to_int(rank);
    add(&number, sizeof number);
  }
  add(outcome.text.data(), outcome.text.size());
  return frame;
}

/// One member's memory and catalogs for a Swap.
class SwappingMember {
 public:
  static constexpr int layout_ranks = 3;

  SwappingMember(Session& session, const Swap& swap)
      : rank_(session.rank()),
        swap_(swap),
        half_(std::max(part(swap.first_bytes), part(swap.second_bytes))),
        arena_(session.allocate(swap.in_arena ? room() : 0)),
        own_(swap.in_arena ? 0 : room()),
        memory_(swap.in_arena ? arena_.data() : own_.data()),
        held_(Rank{rank_}, layout_ranks),
        wanted_(Rank{rank_}, layout_ranks) {
    for (std::size_t i = 0; i < 2; ++i) {
      const TensorSpec spec{{i == 0 ? "a" : "b", "exp_avg"},
                            DType::u8,
                            {static_cast<Extent>(i == 0 ? swap.first_bytes : swap.second_bytes)}};
      TestShard source(spec, held_layout(spec), Rank{rank_});
      source.use(memory_ + i * half_);
      source.fill(i + 1);
      source.add_to(held_);
      targets_.emplace_back(spec, wanted_layout(spec), Rank{rank_});
      targets_.back().use(memory_ + (swap.apart ? 2 + i : 1 - i) * half_);
    }
    for (TestShard& target : targets_) target.add_to(wanted_);
    held_.add_value({"", "step"}, std::int64_t{11});
    wanted_.add_value({"", "step"});
  }

  Exchange start(Session& session) {
    ExchangeOptions options;
    options.timeout = std::chrono::seconds(swap_.deadline_seconds);
    options.ingress_bytes_per_second = swap_.bytes_per_second;
    if (!swap_.apart) options.staging_bytes = part(swap_.first_bytes) * 4 / 3 + 4;
    return session.start_exchange(held_, wanted_, options);
  }
  template <typename Wait>
  Outcome outcome_of(Wait wait) {
    try {
      wait();
    } catch (const Error& error) {
      return {false, error.code(), error.ranks(), error.gaps().size(), error.what()};
    }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < 2; ++i) wrong += targets_[i].wrong(i + 1);
    return {wrong == 0, ErrorCode::internal, {}, 0, std::to_string(wrong) + " wrong elements"};
  }

 private:
  [[nodiscard]] ByteCount part(ByteCount whole) const { return swap_.replicated ? whole : whole / layout_ranks; }
  [[nodiscard]] std::size_t room() const { return half_ * (swap_.apart ? 4 : 2); }
  [[nodiscard]] Layout held_layout(const TensorSpec& spec) const {
    const Box all = Box::whole(spec.shape);
    return swap_.replicated ? Layout::boxes({{Rank{1}, {all}}, {Rank{2}, {all}}}) : Layout::chunk(0, layout_ranks);
  }
  [[nodiscard]] Layout wanted_layout(const TensorSpec& spec) const {
    if (swap_.replicated) return Layout::boxes({{Rank{0}, {Box::whole(spec.shape)}}});
    std::map<Rank, std::vector<Box>> boxes;
    for (int rank = 0; rank < layout_ranks; ++rank) {
      const Extent size = spec.shape[0] / layout_ranks;
      boxes[Rank{rank}] = {Box{{(rank + 1) % layout_ranks * size}, {size}}};
    }
    return Layout::boxes(boxes);
  }

  int rank_;
  Swap swap_;
  std::size_t half_;  // room for one tensor
  Arena arena_;
  std::vector<std::byte> own_;
  std::byte* memory_;
  std::vector<TestShard> targets_;
  Catalog held_;
  Catalog wanted_;
};

}  // namespace shardwire::test
