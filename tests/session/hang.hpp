// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "support/child.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

// What tests with another process agree on with it.
namespace shardwire::test {

/// Long enough that one can stop in the middle.
inline const std::size_t tensor_bytes = on_slow_machine() ? 32u << 20 : 256u << 20;
inline constexpr ByteCount enough_bytes = 8u << 20;
inline constexpr std::string_view all_is_bound = "restore of '";  // what a reader logs before it moves the first byte

/// The other process, as member 1: see hang_peer.cpp for what `task` says it does.
inline Child peer_process(const std::string& task, std::uint16_t port, int members = 2) {
  const char* const program = std::getenv("TEST_PEER");
  return Child({program == nullptr ? "" : program, task, std::to_string(members), std::to_string(port)});
}
/// This process, as member 0 of two, once the other has said that it is ready.
inline Session join_with(const Child& other, std::uint16_t port, const SessionOptions& options = quick()) {
  Session session = Session::join(member(0, 2, port), options);
  read_frame(other.socket());
  return session;
}

/// Stops it. On any thread, so without checks.
inline void freeze_and_await(const Child& child) {
  child.freeze();
  int status = 0;
  ::waitpid(child.pid(), &status, WUNTRACED);
}

/// Options of a reader that does this each time all is bound, and moves the first byte after it.
inline SessionOptions when_all_is_bound(std::function<void()> act) {
  SessionOptions options = quick();
  options.log = [act = std::move(act)](LogLevel, std::string_view text) {
    if (text.starts_with(all_is_bound)) act();
  };
  return options;
}

/// One tensor of one place, in ordinary memory or in memory of a session's that peers may map.
class Tensor {
 public:
  Tensor() : own_(tensor_bytes), bytes_(own_) {}
  explicit Tensor(Session& session)
      : arena_(session.allocate(tensor_bytes)), bytes_(reinterpret_cast<std::byte*>(arena_->data()), tensor_bytes) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  [[nodiscard]] Catalog catalog() {
    Catalog catalog(Rank{0}, 1);
    catalog.add({{"w", "exp_avg"}, DType::u8, {static_cast<Extent>(tensor_bytes)}}, Layout::replicated(),
                View{.data = bytes_.data()});
    return catalog;
  }
  /// Others for another seed, all of them.
  void fill(std::uint8_t seed = 0) {
    each_piece(seed, [](std::byte* at, const std::byte* expected, std::size_t size) {
      std::memcpy(at, expected, size);
      return true;
    });
  }
  [[nodiscard]] bool is_filled(std::uint8_t seed = 0) {
    return each_piece(seed, [](const std::byte* at, const std::byte* expected, std::size_t size) {
      return std::memcmp(at, expected, size) == 0;
    });
  }
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] View view() const { return {.data = bytes_.data(), .bytes = static_cast<ElementCount>(bytes_.size())}; }

 private:
  // Whole pieces at a time: a loop over bytes takes longer than the deadlines under a sanitizer. Their size is a prime,
  // so that bytes moved by any power of two are seen.
  template <typename Work>
  bool each_piece(std::uint8_t seed, Work work) {
    std::vector<std::byte> piece(65521);
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<std::byte>(i * 7 + (i >> 8) * 13 + seed);
    for (std::size_t at = 0; at < bytes_.size(); at += piece.size()) {
      if (!work(bytes_.data() + at, piece.data(), std::min(piece.size(), bytes_.size() - at))) return false;
    }
    return true;
  }
  std::vector<std::byte> own_;
  std::optional<Arena> arena_;
  std::span<std::byte> bytes_;
};

/// A small tensor of one place, in memory of the session's that peers may map.
struct SmallTensor {
  explicit SmallTensor(Session& session) : arena(session.allocate(elements * sizeof(float))) {
    shard.use(arena.data());
  }
  [[nodiscard]] Catalog catalog() {
    Catalog catalog(Rank{0}, 1);
    shard.add_to(catalog);
    return catalog;
  }

  static constexpr std::size_t elements = 10'000;
  Arena arena;
  TestShard shard{{{"w", "exp_avg"}, DType::f32, {static_cast<Extent>(elements)}}, Layout::replicated(), Rank{0}};
};

inline RestoreOptions by(std::optional<Way> way, Duration deadline) {
  RestoreOptions options = within(deadline);
  options.way = way;
  return options;
}
inline RestoreOptions straight(Duration deadline) {
  return by(Way::straight, deadline);
}

}  // namespace shardwire::test
