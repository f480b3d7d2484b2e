// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "support/fake_device.hpp"
#include "support/job.hpp"

// Shared by device_ipc_test.cpp and its other process.
namespace shardwire::test {

/// Two adjacent tensors in one allocation of a device, not at its start; large ones span more chunks than a key lists.
class SharedAllocation {
 public:
  static constexpr ByteCount offset_bytes = 4096;

  SharedAllocation(UsedDevices& devices, int device, bool large) : devices_(devices), device_(device), large_(large) {
    take();
  }
  [[nodiscard]] static TensorSpec spec(const std::string& name, bool large = false) {
    return {{name, "exp_avg"}, DType::f32, {64, large ? 2080 : 96}};
  }
  /// Values depend on the seed.
  void fill(std::uint64_t seed) {
    for (const bool second : {false, true}) {
      TestShard content(spec(second ? "v" : "w", large_), Layout::replicated(), Rank{0});
      content.fill(seed + (second ? 1 : 0));
      devices_->write(address(second), std::span(content.data(), content.size_bytes()));
    }
  }
  /// Frees the allocation and makes another one at the same address.
  void take_anew() {
    devices_->give_back(first_);
    take();
  }
  [[nodiscard]] Catalog catalog() const {
    Catalog catalog(Rank{0}, 1);
    for (const bool second : {false, true}) {
      catalog.add(spec(second ? "v" : "w", large_), Layout::replicated(),
                  View{.data = address(second), .device = device_});
    }
    return catalog;
  }
  /// Number of bytes that differ from those of fill(seed).
  [[nodiscard]] std::size_t wrong(std::uint64_t seed) const {
    std::size_t count = 0;
    for (const bool second : {false, true}) {
      TestShard content(spec(second ? "v" : "w", large_), Layout::replicated(), Rank{0});
      const auto bytes = devices_->read(address(second), content.size_bytes());
      std::copy(bytes.begin(), bytes.end(), content.data());
      count += content.wrong(seed + (second ? 1 : 0));
    }
    return count;
  }

 private:
  [[nodiscard]] ByteCount tensor_bytes() const { return ByteCount{64} * (large_ ? 2080 : 96) * sizeof(float); }
  void take() { first_ = devices_->take(device_, offset_bytes + 2 * tensor_bytes()); }
  [[nodiscard]] std::byte* address(bool second) const { return first_ + offset_bytes + (second ? tensor_bytes() : 0); }

  UsedDevices& devices_;
  int device_;
  bool large_;
  std::byte* first_ = nullptr;
};

}  // namespace shardwire::test
