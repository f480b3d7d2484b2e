// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/bytes.hpp"
#include "support/child.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/sanitizer.hpp"

// Shared by tests with another process and that process.
namespace shardwire::test {

/// Long enough to be stopped in the middle. The thread sanitizer keeps a record of every byte.
inline const std::size_t tensor_bytes = on_slow_machine() || with_thread_sanitizer ? 32u << 20 : 64u << 20;
inline constexpr ByteCount enough_bytes = 8u << 20;
inline constexpr std::string_view all_is_bound = "restore of '";  // a reader logs this before it moves the first byte

/// A task in ordinary memory, and in an arena if that differs for a reader.
inline std::vector<std::string> in_each_memory(const std::string& task) {
  if (!reads_arenas()) return {task};
  return {task, "arena " + task};
}

/// Starts the other process, as member 1, or as the number that a replica's task ends with: hang_peer.cpp lists the tasks.
inline std::vector<std::string> peer_arguments(const std::string& task, std::uint16_t port, int members = 2) {
  const char* const program = std::getenv("TEST_PEER");
  return {program == nullptr ? "" : program, task, std::to_string(members), std::to_string(port)};
}
inline Child peer_process(const std::string& task, std::uint16_t port, int members = 2) {
  return Child(peer_arguments(task, port, members));
}
/// Joins this process as member 0 of two once the other reports that it is ready.
inline Session join_with(const Child& other, std::uint16_t port, const SessionOptions& options = quick()) {
  Session session = Session::join(member(0, 2, port), options);
  read_frame(other.socket());
  return session;
}

/// Stops the process. Called on any thread, so it makes no checks.
inline void freeze_and_await(const Child& child) {
  child.freeze();
  int status = 0;
  ::waitpid(child.pid(), &status, WUNTRACED);
}

/// Kills the process, and leaves a zombie. Called on any thread, so it makes no checks.
inline void kill_and_await(const Child& child) {
  child.kill();
  siginfo_t info{};
  ::waitid(P_PID, static_cast<id_t>(child.pid()), &info, WEXITED | WNOWAIT);
}

/// Options of a reader that calls `act` each time all is bound, and moves the first byte after it.
inline SessionOptions when_all_is_bound(std::function<void()> act) {
  SessionOptions options = quick();
  options.log = [act = std::move(act)](LogLevel, std::string_view text) {
    if (text.starts_with(all_is_bound)) act();
  };
  return options;
}

/// One tensor of one layout rank, in ordinary memory or in session memory that peers may map.
class Tensor {
 public:
  Tensor() : own_(tensor_bytes), bytes_(own_) {}
  explicit Tensor(Session& session)
      : arena_(session.allocate(tensor_bytes)), bytes_(reinterpret_cast<std::byte*>(arena_->data()), tensor_bytes) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  [[nodiscard]] Catalog catalog(Rank rank = Rank{0}, int ranks = 1) {
    Catalog catalog(rank, ranks);
    catalog.add({{"w", "exp_avg"}, DType::u8, {static_cast<Extent>(tensor_bytes)}}, Layout::replicated(),
                View{.data = bytes_.data()});
    return catalog;
  }
  /// All values depend on the seed.
  void fill(std::uint8_t seed = 0) { fill_pattern(bytes_, seed); }
  [[nodiscard]] bool is_filled(std::uint8_t seed = 0) const { return has_pattern(bytes_, seed); }
  [[nodiscard]] std::span<std::byte> bytes() { return bytes_; }
  [[nodiscard]] View view() const { return {.data = bytes_.data(), .bytes = static_cast<ElementCount>(bytes_.size())}; }

 private:
  std::vector<std::byte> own_;
  std::optional<Arena> arena_;
  std::span<std::byte> bytes_;
};

/// A small tensor of one layout rank, in session memory that peers may map.
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

inline RestoreOptions by(std::optional<RestoreMethod> method, Duration timeout) {
  RestoreOptions options = within(timeout);
  options.method = method;
  return options;
}
inline RestoreOptions zcopy(Duration timeout) {
  return by(RestoreMethod::zcopy, timeout);
}

}  // namespace shardwire::test
