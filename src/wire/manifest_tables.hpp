// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "wire/capnp_input.hpp"

// The two large tables of a manifest, or of a list of values, as bytes. Adjacent names share prefixes, and each parameter has the same states:
// as text and structs they would take several times the space.
namespace shardwire::wire {

/// Bounds the expansion of small inputs when they are decoded: `allowance`, and `per_byte` for each byte of the input.
class Expansion {
 public:
  Expansion(std::size_t encoded_bytes, std::size_t allowance, std::size_t per_byte = 16)
      : left_(allowance + per_byte * encoded_bytes) {}
  [[nodiscard]] bool take(std::size_t amount) {
    if (amount > left_) return false;
    left_ -= amount;
    return true;
  }

 private:
  std::size_t left_;
};

/// Each name is the number of bytes that it shares with the one before, the number of its other bytes, and those bytes.
Bytes encode_names(const std::vector<const std::string*>& names);
/// Errors: in.reject() for names that are too long, contain zero bytes, or exceed `left`.
std::vector<std::string> decode_names(std::span<const std::byte> bytes, const Input& in, Expansion left);

/// A tensor of a manifest as indices into its tables.
struct TensorRow {
  std::uint32_t name = 0;
  std::uint32_t state = 0;
  std::uint32_t shape = 0;
  std::uint32_t rule = 0;
  std::uint32_t dtype = 0;  ///< number of a DType
  bool operator==(const TensorRow&) const = default;
};
/// Sizes of those tables.
struct TableSizes {
  std::size_t names = 0;
  std::size_t states = 0;
  std::size_t shapes = 0;
  std::size_t rules = 0;
};

/// Each row is a byte that marks which of its five numbers differ from the prediction, and those numbers. Predicted
/// are: the next state, or the next name after the last state; shape and rule that the name had in another state, else
/// those of the row before; and the dtype that the state had before.
/// Errors: throws Error{invalid_argument} for more rows than a message may have.
Bytes encode_rows(std::span<const TensorRow> rows, const TableSizes& sizes);
/// Does not check the dtypes.
/// Errors: in.reject() for rows that refer beyond the end of a table, and for more rows than a message may have.
std::vector<TensorRow> decode_rows(std::span<const std::byte> bytes, const TableSizes& sizes, Input& in,
                                   const char* field);

}  // namespace shardwire::wire
