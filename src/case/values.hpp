// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "shardwire/layout.hpp"
#include "shardwire/tensor.hpp"

namespace shardwire {

/// An element with wrong bytes.
struct ValueMismatch {
  TensorKey key;
  Extents index;  ///< global
  Bytes expected;
  Bytes found;
};

/// The result of a check.
struct ValueCheck {
  ElementCount elements = 0;
  ElementCount wrong = 0;
  std::optional<ValueMismatch> first;
};

/// The values of every element of a tensor in one generation: a function of its name and global index, so that any rank
/// can make or check its part alone. An element is the first bytes of the numbers of a generator, least significant first.
class ElementValues {
 public:
  ElementValues(TensorSpec spec, std::uint64_t generation);

  [[nodiscard]] const TensorSpec& spec() const { return spec_; }
  /// The generator of an element is splitmix64 in the state seed() ^ index; nearly all elements take its first number.
  [[nodiscard]] std::uint64_t seed() const { return seed_; }
  [[nodiscard]] std::uint64_t number_at(std::uint64_t index) const;
  /// Writes the values of one box to its position in a rank's local buffer.
  void fill(const PlacedBox& placed, std::byte* local) const;
  /// Writes the bitwise complement of these values: no byte of it equals the right one.
  void fill_complement(const PlacedBox& placed, std::byte* local) const;
  /// Compares as bytes and adds the result to `check`.
  void check(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const;

 private:
  template <typename Item>
  void write(const PlacedBox& placed, std::byte* local, Item flip) const;
  template <typename Item>
  void compare(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const;
  void write_bytes(const PlacedBox& placed, std::byte* local, std::uint64_t flip) const;
  void compare_bytes(const PlacedBox& placed, const std::byte* local, ValueCheck& check) const;

  TensorSpec spec_;
  std::uint64_t seed_;
};

/// "model.norm.weight:exp_avg (17) is 00000000, must be 3f449f41"
std::string to_string(const ValueMismatch& mismatch);

}  // namespace shardwire
