// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <optional>
#include <span>

#include "wire/messages.hpp"

namespace shardwire::wire {

/// The header of a payload on the fabric: the request that it answers, and its contents.
struct PayloadHeader {
  std::uint64_t request = 0;          ///< 0: a header of another form; requests never have that number
  std::uint32_t part = 0;             ///< of a request with PackRequest::each, else 0
  std::optional<Digest128> digest{};  ///< if the request asked for one
  bool operator==(const PayloadHeader&) const = default;
};

/// 8 bytes, the request number, for a whole answer without digest, the form known to all members; else 32.
class EncodedHeader {
 public:
  explicit EncodedHeader(const PayloadHeader& header);
  [[nodiscard]] std::span<const std::byte> bytes() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, 32> bytes_{};
  std::size_t size_ = 0;
};

PayloadHeader decode_header(std::span<const std::byte> bytes);

}  // namespace shardwire::wire
