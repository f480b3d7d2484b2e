// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "case/case.hpp"
#include "perf/measure/state_block.hpp"
#include "shardwire/session.hpp"

namespace shardwire::perf {

/// The state that one rank of one side of a case holds or wants, in one piece of memory that the caller provides.
class StateMemory {
 public:
  /// Without a rank: nothing.
  StateMemory(const CaseSide& side, std::optional<Rank> place);

  [[nodiscard]] bool takes_part() const { return manifest_ != nullptr; }
  /// Memory that it takes, including gaps that align tensors.
  [[nodiscard]] ByteCount size_bytes() const { return size_bytes_; }
  /// All other functions require this. `memory` is borrowed, of size_bytes(), aligned for any element.
  void lie_in(std::span<std::byte> memory) { memory_ = memory; }
  /// As many bytes as there are elements, from the start of the memory: for plain copies.
  [[nodiscard]] std::span<std::byte> payload() const { return memory_.first(static_cast<std::size_t>(payload_bytes_)); }
  [[nodiscard]] ByteCount payload_bytes() const { return payload_bytes_; }

  /// `block`: its bytes() contain the memory. Requires: takes_part().
  [[nodiscard]] Catalog catalog(const StateBlock& block) const;
  void fill() const;
  /// Writes a wrong value to every element.
  void spoil() const;
  /// Returns the number of elements compared. Errors: throws std::runtime_error that names the first wrong one.
  [[nodiscard]] ElementCount check() const;
  /// The same in the actual memory of the state. `block`: its bytes() contain the memory.
  void fill(const StateBlock& block) const;
  void spoil(const StateBlock& block) const;
  [[nodiscard]] ElementCount check(const StateBlock& block) const;

  /// Requires: takes_part().
  [[nodiscard]] const Manifest& manifest() const { return *manifest_; }
  /// Offset of local element 0 of a tensor of the manifest, from the start of the memory.
  [[nodiscard]] ByteCount offset_of(TensorId tensor) const { return offsets_[to_index(tensor)]; }

 private:
  template <typename Visit>
  void each(Visit visit) const;
  [[nodiscard]] std::vector<memory::ValueBox> boxes(bool complement) const;

  Rank place_{};
  int ranks_ = 0;
  std::shared_ptr<const Manifest> manifest_;  // owners: as in Section; null: nothing held or wanted
  std::vector<ByteCount> offsets_;            // by tensor
  std::span<std::byte> memory_;
  ByteCount size_bytes_ = 0;
  ByteCount payload_bytes_ = 0;
};

/// The one of a rank's boxes that contains `box`. Errors: throws std::runtime_error if none does.
PlacedBox placed_around(const TensorLayout& tensor, Rank rank, const Box& box);

}  // namespace shardwire::perf
