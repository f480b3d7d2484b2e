// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
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
#include "support/require.hpp"

namespace shardwire::test {

/// A loopback port that is free now.
std::uint16_t free_port();

/// TEST_TRANSPORT, or loopback.
inline std::string transport_under_test() {
  const char* name = std::getenv("TEST_TRANSPORT");
  return name == nullptr ? "loopback" : name;
}

/// TEST_ENCRYPTED: members have a key, and encrypt what they send over tcp.
inline bool encrypted_under_test() {
  return std::getenv("TEST_ENCRYPTED") != nullptr;
}

/// Whether peers can map arenas over it.
inline bool maps_arenas() {
  const std::string transport = transport_under_test();
  return transport.find("shm") != std::string::npos || transport == "loopback";
}
/// Whether one-sided reads of arenas work over it, mapped or not.
inline bool reads_arenas() {
  return maps_arenas() || transport_under_test().find("libfabric") != std::string::npos;
}
/// Whether it reads a peer's memory outside of arenas.
inline bool reads_ordinary_memory() {
  return transport_under_test().find("shm") != std::string::npos;
}

/// Runs `body(member)` on one thread per member and rethrows the first failure, prefixed with the member's number.
void on_members(int members, const std::function<void(int)>& body);

/// Bootstrap of one member of a job on this host.
inline Bootstrap member(int rank, int members, std::uint16_t port) {
  Bootstrap bootstrap;
  bootstrap.rank = rank;
  bootstrap.world_size = members;
  bootstrap.port = port;
  if (encrypted_under_test()) bootstrap.job_key.assign(32, std::byte{9});
  return bootstrap;
}

/// Longer than any operation that succeeds, also on a busy machine.
inline constexpr std::chrono::seconds patience(120);

/// Options of sessions and restores in tests on one host.
inline SessionOptions quick() {
  SessionOptions options;
  options.transport = transport_under_test();
  options.join_timeout = patience;
  options.encrypt_payload = encrypted_under_test();
  return options;
}
inline RestoreOptions within(Duration timeout) {
  RestoreOptions options;
  options.timeout = timeout;
  options.discovery_grace = std::chrono::milliseconds(50);
  return options;
}

/// The same with little staging, so that moves take many slots.
inline SessionOptions tight() {
  SessionOptions options = quick();
  options.staging_bytes = 64 << 10;
  return options;
}
inline RestoreOptions tight_within(Duration timeout) {
  RestoreOptions options = within(timeout);
  options.staging_bytes = 64 << 10;
  return options;
}

/// The error that `call` throws; the test fails if it throws none.
template <typename Call>
Error failure_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no error was thrown");
}

/// The error of `call(timeout)`. A busy machine may need longer to come as far as is `reached(error)`, so it is called again with
/// twice the timeout until it has.
template <typename Call, typename Reached>
Error failure_by(Duration timeout, Call call, Reached reached) {
  while (true) {
    const Error error = failure_of([&] { call(timeout); });
    if (reached(error) || timeout > patience / 4) return error;
    timeout *= 2;
  }
}
inline auto with_code(ErrorCode code) {
  return [code](const Error& error) { return error.code() == code; };
}

inline bool says(const Error& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

/// A tensor's local buffer under a layout, filled by global index: each element's value mixes its index and `seed`.
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
  void fill(std::uint64_t seed);
  /// Number of elements that differ from those of fill(seed).
  [[nodiscard]] std::size_t wrong(std::uint64_t seed);

 private:
  template <typename Visit>
  void each_part(std::uint64_t seed, const Visit& visit);

  TensorSpec spec_;
  Layout layout_;
  Rank place_;
  std::vector<std::byte> bytes_;
  std::byte* outside_ = nullptr;
};

}  // namespace shardwire::test
