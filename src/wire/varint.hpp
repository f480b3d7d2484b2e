// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "wire/capnp_input.hpp"

// Numbers as bytes, for data that would take several times the space as structs: little-endian, 7 bits per byte.
namespace shardwire::wire {

/// Requires: value < 2^56.
inline void put_varint(Bytes& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<std::byte>(value | 0x80));
  out.push_back(static_cast<std::byte>(value));
}

/// Maps small numbers of either sign to small numbers.
inline std::uint64_t zigzag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63);
}
inline std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1) ^ -static_cast<std::int64_t>(value & 1);
}

/// Decodes bytes that may be hostile. Errors: every call rejects the current field of `in`.
class VarintReader {
 public:
  VarintReader(std::span<const std::byte> bytes, const Input& in) : bytes_(bytes), in_(in) {}
  [[nodiscard]] bool done() const { return bytes_.empty(); }

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 56; shift += 7) {
      const auto byte = std::to_integer<std::uint64_t>(bytes(1).front());
      value |= (byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
    in_.reject("has a number of more than 56 bits");
  }
  /// At most `most`, which is not negative.
  std::int64_t number(std::int64_t most, const char* what) {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(most)) {
      in_.reject(std::string("has the ") + what + " " + std::to_string(value) + ", more than " + std::to_string(most));
    }
    return static_cast<std::int64_t>(value);
  }
  std::span<const std::byte> bytes(std::size_t count) {
    if (count > bytes_.size()) in_.reject("ends too early");
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
  const Input& in_;
};

}  // namespace shardwire::wire
