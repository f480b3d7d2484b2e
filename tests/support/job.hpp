// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "shardwire/shardwire.hpp"

namespace shardwire::test {

/// A loopback port that is free now.
std::uint16_t free_port();

/// TEST_TRANSPORT, or loopback.
inline std::string transport_under_test() {
  const char* name = std::getenv("TEST_TRANSPORT");
  return name == nullptr ? "loopback" : name;
}

/// Whether peers' arenas can be mapped over it.
inline bool maps_arenas() {
  const std::string transport = transport_under_test();
  return transport.find("shm") != std::string::npos || transport == "loopback";
}
/// Whether they can be read one-sidedly, mapped or not.
inline bool reads_arenas() {
  return maps_arenas() || transport_under_test().find("libfabric") != std::string::npos;
}
/// Whether a peer's memory that is in no arena can be read over it.
inline bool reads_ordinary_memory() {
  return transport_under_test().find("shm") != std::string::npos;
}

/// Runs `body(member)` on one thread per member and rethrows the first failure, with the member's number in front.
void on_members(int members, const std::function<void(int)>& body);

/// A check for bodies of on_members: Boost.Test's own may be used from one thread only.
inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

/// Bootstrap of one member of a job on this host.
inline Bootstrap member(int rank, int members, std::uint16_t port) {
  Bootstrap bootstrap;
  bootstrap.rank = rank;
  bootstrap.world_size = members;
  bootstrap.port = port;
  return bootstrap;
}

/// Options of a session and of a restore in a test on one host.
inline SessionOptions quick() {
  SessionOptions options;
  options.transport = transport_under_test();
  options.join_timeout = std::chrono::seconds(20);
  return options;
}
inline RestoreOptions within(Duration deadline) {
  RestoreOptions options;
  options.deadline = deadline;
  options.discovery_grace = std::chrono::milliseconds(50);
  return options;
}

/// The same with little staging, so that moves take many slots.
inline SessionOptions tight() {
  SessionOptions options = quick();
  options.staging_bytes = 64 << 10;
  return options;
}
inline RestoreOptions tight_within(Duration deadline) {
  RestoreOptions options = within(deadline);
  options.staging_bytes = 64 << 10;
  return options;
}

/// What `call` throws; fails the test when it throws nothing.
template <typename Call>
Error failure_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no error was thrown");
}

inline bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

/// A tensor's local buffer under a layout, filled by global index: element i of tensor `seed` is a mix of both.
class TestShard {
 public:
  TestShard(TensorSpec spec, Layout layout, Rank place)
      : spec_(std::move(spec)), layout_(std::move(layout)), place_(place) {
    const auto elements = static_cast<ByteCount>(layout_.local_elements(spec_.shape, place_));
    bytes_.assign(static_cast<std::size_t>(elements * item_size(spec_.dtype)), std::byte{0xee});
  }

  void use(std::byte* memory) { outside_ = memory; }
  [[nodiscard]] std::byte* data() { return outside_ != nullptr ? outside_ : bytes_.data(); }
  [[nodiscard]] ByteCount size_bytes() const { return bytes_.size(); }
  void add_to(Catalog& catalog) { catalog.add(spec_, layout_, View{.data = data()}); }
  void fill(std::uint64_t seed) {
    each([&](std::byte* at, std::uint64_t index) { store(at, index, seed); });
  }
  /// Number of elements that differ from what fill(seed) gives.
  [[nodiscard]] std::size_t wrong(std::uint64_t seed) {
    std::size_t count = 0;
    const ByteCount item = item_size(spec_.dtype);
    each([&](std::byte* at, std::uint64_t index) {
      std::byte expected[8];
      store(expected, index, seed);
      count += std::memcmp(at, expected, item) != 0 ? 1 : 0;
    });
    return count;
  }

 private:
  void store(std::byte* at, std::uint64_t index, std::uint64_t seed) const {
    const std::uint64_t value = (index + 1) * 0x9e3779b97f4a7c15ULL ^ seed * 0xd1b54a32d192ed03ULL ^ (index >> 7);
    std::memcpy(at, &value, item_size(spec_.dtype));
  }
  void each(const std::function<void(std::byte*, std::uint64_t)>& body) {
    const ByteCount item = item_size(spec_.dtype);
    const Extents global = row_major_strides(spec_.shape);
    for (const PlacedBox& placed : layout_.boxes_of(spec_.shape, place_)) {
      const ElementCount volume = placed.box.volume();
      for (ElementCount n = 0; n < volume; ++n) {
        ElementCount rest = n;
        ElementCount local = placed.local_offset;
        ElementCount index = 0;
        for (std::size_t d = placed.box.dims(); d-- > 0;) {
          const ElementCount at = rest % placed.box.size[d];
          rest /= placed.box.size[d];
          local += at * placed.local_strides[d];
          index += (placed.box.offset[d] + at) * global[d];
        }
        body(data() + static_cast<ByteCount>(local) * item, static_cast<std::uint64_t>(index));
      }
    }
  }

  TensorSpec spec_;
  Layout layout_;
  Rank place_;
  std::vector<std::byte> bytes_;
  std::byte* outside_ = nullptr;
};

}  // namespace shardwire::test
