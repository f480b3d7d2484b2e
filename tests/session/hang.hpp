// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/child.hpp"
#include "support/job.hpp"

// What both processes of hang_test.cpp agree on.
namespace shardwire::test {

inline constexpr std::size_t tensor_bytes = 256u << 20;  // long enough that one can stop in the middle
inline constexpr ByteCount enough_bytes = 8u << 20;

/// One tensor in ordinary memory, of one place.
class Tensor {
 public:
  [[nodiscard]] Catalog catalog() {
    Catalog catalog(Rank{0}, 1);
    catalog.add({{"w", "exp_avg"}, DType::u8, {static_cast<Extent>(tensor_bytes)}}, Layout::replicated(),
                View{.data = bytes_.data()});
    return catalog;
  }
  void fill() {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = expected(i);
  }
  [[nodiscard]] bool is_filled() const {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_[i] != expected(i)) return false;
    }
    return true;
  }
  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }

 private:
  static std::byte expected(std::size_t i) { return static_cast<std::byte>(i * 7 + (i >> 12) * 13); }
  std::vector<std::byte> bytes_ = std::vector<std::byte>(tensor_bytes);
};

inline RestoreOptions straight(Duration deadline) {
  RestoreOptions options = within(deadline);
  options.way = Way::straight;
  return options;
}

}  // namespace shardwire::test
