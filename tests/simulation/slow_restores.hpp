// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "simulation/scenario.hpp"
#include "support/job.hpp"

// Restores of one tensor that take a second in made time.
namespace shardwire::simulation {

inline constexpr ByteCount made_bytes = 256 << 10;
inline const TensorSpec made_tensor{{"w", "exp_avg"}, DType::f32, {made_bytes / 4}};
inline constexpr Duration soon = std::chrono::seconds(2);  ///< well before any deadline
/// How much later than its deadline a call may end.
inline constexpr Duration slack = std::chrono::milliseconds(1500);

/// Names of methods for data of cases; "cheapest" is any.
inline constexpr const char* made_methods[] = {"cheapest", "zcopy", "packed"};
inline std::optional<RestoreMethod> method_of(std::string_view name) {
  if (name == "zcopy") return RestoreMethod::zcopy;
  if (name == "packed") return RestoreMethod::packed;
  return std::nullopt;
}

/// Whether the bytes come in messages that are copied, which stay in place whatever becomes of their source.
inline bool comes_in_copies(std::string_view fabric, std::optional<RestoreMethod> method) {
  return fabric == "streams" || (method && fabric != "messages");
}

inline RestoreOptions slowly(std::optional<RestoreMethod> method = {}, ByteCount bytes_per_second = made_bytes) {
  RestoreOptions options = test::within(test::patience);
  options.method = method;
  options.staging_bytes = 16 << 10;
  options.ingress_bytes_per_second = bytes_per_second;
  return options;
}
inline RestoreOptions slowly_within(Duration timeout, std::optional<RestoreMethod> method = {}) {
  RestoreOptions options = slowly(method);
  options.timeout = timeout;
  return options;
}

/// Options of a reader that calls `act` each time all is bound, before it moves a byte.
inline SessionOptions when_bound(std::function<void()> act) {
  SessionOptions options;
  options.staging_bytes = 256 << 10;  // four slots
  options.log = [act = std::move(act)](LogLevel, std::string_view text) {
    if (text.starts_with("restore of '")) act();
  };
  return options;
}

/// The tensor as one process holds it, in its own memory or in an arena.
class MadeTensor {
 public:
  explicit MadeTensor(std::uint64_t seed = 1) { shard.fill(seed); }
  MadeTensor(Session& session, bool in_arena) {
    if (in_arena) shard.use((arena_ = session.allocate(made_bytes)).data());
    shard.fill(1);
  }
  MadeTensor(const MadeTensor&) = delete;
  MadeTensor& operator=(const MadeTensor&) = delete;
  [[nodiscard]] Catalog catalog(Rank rank = Rank{0}, int ranks = 1) {
    Catalog catalog(rank, ranks);
    shard.add_to(catalog);
    return catalog;
  }
  void fill(std::uint64_t seed) { shard.fill(seed); }
  [[nodiscard]] bool is(std::uint64_t seed) { return shard.wrong(seed) == 0; }

  test::TestShard shard{made_tensor, Layout::replicated(), Rank{0}};

 private:
  Arena arena_;
};

/// The tensor is there, and the report agrees with itself.
inline void require_complete(MadeTensor& wanted, const RestoreReport& report) {
  test::require(wanted.is(1), "the tensor is restored");
  test::require(report.needed_bytes == made_bytes, "all bytes are needed");
  const ByteCount came = report.moved_bytes + report.local_bytes;
  test::require(came == report.needed_bytes + report.overread_bytes + report.resent_bytes, "bytes are counted once");
  ByteCount by_method = 0;
  report.methods.each([&](Method, const MethodReport& row) { by_method += row.bytes; });
  test::require(by_method == came, "each byte has a method");
}

/// One of members 0 and 1 has published the tensor, the other one restores it.
struct Pair {
  explicit Pair(const char* fabric, bool in_arena = false, int source_member = 1, int members = 2)
      : made(members, fabrics_of(fabric)), source_number(source_member) {
    for (const int member : {0, 1}) {
      const auto act = [this] {
        bound = true;
        if (const auto first = std::exchange(at_bound, nullptr)) first();
      };
      (member == source_number ? source : reader).emplace(made.join(member, when_bound(act)));
    }
    held.emplace(*source, in_arena);
    publication = source->publish(held->catalog());
  }

  Restore restore(const RestoreOptions& options) { return reader->restore(wanted.catalog(), options); }
  /// Returns once so many bytes have arrived.
  Restore begun(const RestoreOptions& options, ByteCount bytes = made_bytes / 8) {
    return moving(made, *reader, wanted.catalog(), options, bytes);
  }
  void require_restored(std::uint64_t seed = 1) {
    wanted.fill(7);
    restore(test::within(test::patience)).wait();
    test::require(wanted.is(seed), "the tensor is restored");
  }
  [[nodiscard]] Process& source_process() { return made.process(source_number); }
  void kill_source() { made.kill(source_number, source); }
  void kill_reader() { made.kill(1 - source_number, reader); }

  Scenario made;
  const int source_number;
  bool bound = false;
  std::function<void()> at_bound{};  ///< called the first time
  std::optional<Session> source;
  std::optional<Session> reader;
  std::optional<MadeTensor> held;
  Publication publication;
  MadeTensor wanted{7};
};

/// Member 0 reads what members 1 and 2 hold: both as the only layout rank, or each as one of two, which are replicas.
struct TwoHolders {
  explicit TwoHolders(const char* fabric, bool in_arena = false, int layout_ranks = 2, int published = 2)
      : made(3, fabrics_of(fabric)), ranks(layout_ranks) {
    for (const int at : {0, 1}) {
      Session& session = members.emplace_back(made.join(1 + at)).value();
      held.emplace_back(session, in_arena);
      if (at < published) publish(at);
    }
    // publish() does not wait until this member knows of it.
    if (published > 0) static_cast<void>(reader.await_step("state", 0, test::patience));
  }
  // A publication that ends waits for its session.
  ~TwoHolders() {
    for (const int member : {1, 2}) made.resume(made.process(member));
  }
  TwoHolders(const TwoHolders&) = delete;
  TwoHolders& operator=(const TwoHolders&) = delete;
  void publish(int at) {
    const auto place = static_cast<std::size_t>(at);
    publications.push_back(members[place]->publish(held[place].catalog(Rank{ranks == 1 ? 0 : at}, ranks)));
  }
  Restore begun(const RestoreOptions& options) {
    return moving(made, reader, wanted.catalog(), options, made_bytes / 8);
  }
  void finish(Restore& restore) {
    restore.wait();
    require_complete(wanted, restore.report());
  }
  void lose_first(bool killed) { killed ? made.kill(1, members[0]) : made.process(1).stop(); }

  Scenario made;
  const int ranks;
  std::function<void()> at_bound{};
  Session reader = made.join(0, when_bound([this] {
                               if (const auto act = std::exchange(at_bound, nullptr)) act();
                             }));
  std::deque<std::optional<Session>> members;
  std::deque<MadeTensor> held;
  std::deque<Publication> publications;
  MadeTensor wanted{7};
};

}  // namespace shardwire::simulation
