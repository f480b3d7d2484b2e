// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardwire {

/// Source of random numbers of cryptographic quality. `UvLoop` is the real one; simulations supply a seeded one.
/// Threads: any.
class RandomSource {
 public:
  /// Errors: throws Error{transport_failed} if the system has none.
  virtual void fill_random(std::span<std::byte> into) = 0;
  std::uint64_t random_number() {
    std::uint64_t value = 0;
    fill_random(std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

 protected:
  ~RandomSource() = default;
};

}  // namespace shardwire
