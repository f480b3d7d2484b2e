// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>

#include "fuzz/targets.hpp"
#include "shardwire/error.hpp"
#include "support/allocated_bytes.hpp"

namespace shardwire::fuzz {

/// A promise that an input has broken. It is no Error, so that no decoder and no target takes it for a refusal.
class Violation : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

inline void require(bool holds, const char* promise) {
  if (!holds) throw Violation(promise);
}

/// Bounds the bytes that `operator new` returns, freed or not, by the size of an input.
class Allocation {
 public:
  /// `per_byte` of the input, in addition to `fixed`.
  void require_at_most(std::size_t input_bytes, std::size_t per_byte, std::size_t fixed) const {
    require(test::allocated_bytes() - before_ <= fixed + per_byte * input_bytes,
            "memory is allocated in proportion to the input");
  }

 private:
  std::uint64_t before_ = test::allocated_bytes();
};

/// The result of `decode`; empty if it has refused the input with `code`. Every other exception ends the run.
template <typename Decode>
auto accepted(Decode decode, ErrorCode code = ErrorCode::transport_failed) -> std::optional<decltype(decode())> {
  try {
    return decode();
  } catch (const Error& error) {
    require(error.code() == code, "a refusal has the documented code");
    require(error.what()[0] != '\0', "a refusal has a reason");
    return std::nullopt;
  }
}

}  // namespace shardwire::fuzz
