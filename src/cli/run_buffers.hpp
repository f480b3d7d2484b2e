// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "case/case.hpp"
#include "case/values.hpp"
#include "perf/measure/state_block.hpp"
#include "shardwire/session.hpp"

namespace shardwire::cli {

/// Bytes of an arena that holds one rank's part of a side.
ByteCount arena_bytes(const CaseSide& side, Rank rank);

/// One rank's part of one side of a case: its memory and its declarations.
class SideBuffers {
 public:
  /// Long-running functions here call `alive` repeatedly.
  SideBuffers(Session& session, const Case& job, const CaseSide& side, Rank rank, const perf::StatePlace& place,
              std::function<void()> alive);

  /// Writes the values of one generation, or their complements; and NaN bytes to all padding.
  void fill(std::uint64_t generation, bool complement);
  /// Declares everything in an order that all ranks share. One-element tensors are replicated, whatever their rule.
  [[nodiscard]] Catalog catalog(std::uint64_t generation) const;
  /// Compares every element. One-element tensors add to `values`, the others to `elements`.
  /// Errors: throws Error{internal} if fill()'s padding has changed.
  void check(std::uint64_t generation, ValueCheck& elements, ValueCheck& values) const;

 private:
  struct Slice {
    const TensorSpec* spec;
    Layout layout;
    std::byte* data;
    std::vector<PlacedBox> boxes;
  };

  struct Buffer {
    std::byte* data = nullptr;
    ByteCount bytes = 0;
    std::vector<std::size_t> parts;  // of parts_
  };
  struct Padding {
    std::byte* data;
    ByteCount bytes;
    std::size_t part;  // one that shares the buffer, to name it
  };

  void find_padding(const Buffer& buffer);
  /// Calls visit(values, placed, slice, is_value) for all boxes.
  template <typename Visit>
  void each_box(std::uint64_t generation, Visit visit) const;
  [[nodiscard]] std::vector<memory::ValueBox> boxes(std::uint64_t generation, bool complement) const;
  void check_in_mirror(std::uint64_t generation, ValueCheck& elements, ValueCheck& values) const;
  void check_padding() const;

  const Case* job_;
  int ranks_;
  Rank rank_;
  std::function<void()> alive_;
  perf::StateBlock memory_;
  std::vector<Slice> parts_;   // in manifest order
  std::vector<Slice> values_;  // one-element tensors
  std::vector<Padding> padding_;
};

/// The value of a scalar in one generation: integers increase, so that a stale value is detected.
Value scalar_value(const Value& value, std::uint64_t generation);

}  // namespace shardwire::cli
