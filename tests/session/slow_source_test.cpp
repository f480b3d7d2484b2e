// SPDX-License-Identifier: Apache-2.0
// A source that goes on delivering, but far more slowly than before.
#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/slow_fabric.hpp"
#include "handles/session_state.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(slow_source)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr ByteCount small = 32 << 20;
// So little that no machine is so busy that another source is as slow.
constexpr double slow_bytes_per_second = 4e6;
// Long enough that it does not end before a loaded machine has made its source slow.
constexpr ByteCount large = 256 << 20;

/// Member 0 reads. Members 1 and 2 publish the same tensor, and each can be made slow.
struct Job {
  explicit Job(ByteCount size) : bytes(size), whole{{"w", "m"}, DType::f32, {static_cast<Extent>(size / 4)}} {
    const std::uint16_t port = free_port();
    on_members(3, [&](int number) {
      SessionOptions options = quick();
      options.log = [this](LogLevel, std::string_view text) {
        const std::lock_guard lock(mutex);
        logged.append(text).append("\n");
      };
      sessions[number].emplace(detail::SessionState::join_in([&, number] { return surroundings(number); },
                                                             member(number, 3, port), options));
    });
    for (const int rank : {0, 1}) {
      held[rank].emplace(whole, Layout::replicated(), Rank{0});
      held[rank]->fill(7);
      Catalog catalog(Rank{rank}, 2);
      held[rank]->add_to(catalog);
      publications[rank].emplace(sessions[rank + 1]->publish(catalog));
    }
  }

  detail::Surroundings surroundings(int number) {
    detail::Surroundings made = detail::surroundings_of_process();
    made.open_fabrics = [this, number, open = std::move(made.open_fabrics)](const auto&... arguments) {
      auto fabrics = open(arguments...);
      fabrics->wrap([this, number](std::unique_ptr<transport::Fabric> one) {
        return cli::slowable(std::move(one), slow[number], slow_bytes_per_second);
      });
      return fabrics;
    };
    return made;
  }

  /// Reads the tensor; these members become slow once a tenth of the smaller one has arrived. On a busy machine a source may be
  /// silent for the notice, and the restore begins again, three times at most.
  RestoreReport restore_while_slow(const std::vector<int>& members, RestoreOptions options) {
    RestoreReport report = restore_once(members, options);
    for (int again = 0; again < 3 && !report.lost.empty(); ++again) report = restore_once(members, options);
    return report;
  }
  RestoreReport restore_once(const std::vector<int>& members, RestoreOptions options) {
    for (std::atomic<bool>& one : slow) one = false;
    {
      const std::lock_guard lock(mutex);
      logged.clear();
    }
    options.stop_at_values = true;  // until it is watched
    TestShard shard(whole, Layout::replicated(), Rank{0});
    Catalog wanted(Rank{0}, 1);
    shard.add_to(wanted);
    Restore restore = sessions[0]->restore(wanted, options);
    restore.on_progress(
        [this, members](const Progress& progress) {
          if (progress.done_bytes < small / 10) return;
          for (const int number : members) slow[number] = true;
        },
        1ms);
    restore.proceed();
    restore.wait();
    BOOST_TEST(shard.wrong(7) == 0U);
    return restore.report();
  }

  bool says(std::string_view text) {
    const std::lock_guard lock(mutex);
    return logged.find(text) != std::string::npos;
  }

  const ByteCount bytes;
  const TensorSpec whole;
  std::mutex mutex;
  std::string logged;  // guarded by mutex
  std::array<std::atomic<bool>, 3> slow{};
  std::array<std::optional<TestShard>, 2> held;
  std::array<std::optional<Session>, 3> sessions;
  std::array<std::optional<Publication>, 2> publications;
};

RestoreOptions noticing() {
  RestoreOptions options = within(patience);
  options.notice = 3s;                 // a busy machine may keep a source from answering for a second
  options.discovery_grace = patience;  // both publish
  return options;
}

ByteCount bytes_from(const RestoreReport& report, Rank rank) {
  ByteCount sum = 0;
  for (const PeerReport& one : report.peers) sum += one.rank == rank ? one.bytes : 0;
  return sum;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_waits_for_it_comes_from_another_holder) {
  Job job(large);
  const RestoreReport report = job.restore_while_slow({2}, noticing());
  BOOST_TEST(job.says("source rank 1 is slow: "));
  BOOST_TEST(report.lost.empty());
  BOOST_TEST(report.resent_bytes == 0U);
  BOOST_TEST(report.moved_bytes == job.bytes);
  BOOST_TEST(bytes_from(report, Rank{0}) > bytes_from(report, Rank{1}));
}

BOOST_AUTO_TEST_CASE(nothing_is_taken_from_it_if_every_holder_is_slow) {
  Job job(small);
  const RestoreReport report = job.restore_while_slow({1, 2}, noticing());
  BOOST_TEST(report.lost.empty());
  BOOST_TEST(report.resent_bytes == 0U);
  BOOST_TEST(report.moved_bytes == job.bytes);
}

BOOST_AUTO_TEST_CASE(a_tensor_that_comes_from_one_holder_stays_with_it) {
  Job job(small);
  RestoreOptions options = noticing();
  options.replicas = Replicas::first;
  const RestoreReport report = job.restore_while_slow({1}, options);
  BOOST_TEST(!job.says(" is slow: "));
  BOOST_TEST(bytes_from(report, Rank{0}) == job.bytes);
}

BOOST_AUTO_TEST_SUITE_END()
