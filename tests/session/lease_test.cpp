// SPDX-License-Identifier: Apache-2.0
// Memory that is read, over each fabric. tests/simulation/retirement_test.cpp has what happens at which time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "support/blocked.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(lease)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

// Two members: 0 publishes, 1 reads slowly (rate limit).
struct Pair {
  static constexpr ByteCount bytes = 4 << 20;

  Pair() {
    held.use(arena.data());
    held.fill(1);
    Catalog catalog(Rank{0}, 1);
    held.add_to(catalog);
    publication = source.publish(catalog);
    wanted.add_to(target);
  }
  static RestoreOptions at(ByteCount bytes_per_second) {
    RestoreOptions options = within(patience);
    options.ingress_bytes_per_second = bytes_per_second;
    return options;
  }

  const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {static_cast<Extent>(bytes / 4)}};
  TestShard held{spec, Layout::replicated(), Rank{0}};
  TestShard wanted{spec, Layout::replicated(), Rank{0}};
  Catalog target{Rank{0}, 1};
  std::uint16_t port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), quick());
  Arena arena = source.allocate(bytes);
  Publication publication;
};

}  // namespace

BOOST_AUTO_TEST_CASE(retire_waits_for_a_reader_and_the_restore_commits) {
  Pair pair;
  Restore restore = moving(pair.reader, pair.target, Pair::at(4 * Pair::bytes), [] {});
  pair.publication.retire(patience);
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(retire_times_out_by_name_and_the_reader_commits_the_next_generation_only) {
  Pair pair;
  std::optional<Error> error;
  Restore restore = moving(pair.reader, pair.target, Pair::at(4 * Pair::bytes),
                           [&] { error = failure_of([&] { pair.publication.retire(20ms); }); });
  BOOST_TEST((error->code() == ErrorCode::timed_out));
  BOOST_TEST((error->ranks() == std::vector<Rank>{Rank{1}}));
  // The memory is the caller's again: what is read of it is thrown away, which the thread sanitizer cannot know.
  if (!with_thread_sanitizer) pair.held.fill(3);
  TestShard next(pair.spec, Layout::replicated(), Rank{0});
  next.fill(2);
  Catalog catalog(Rank{0}, 1);
  next.add_to(catalog);
  pair.publication = pair.source.publish(catalog);
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(2) == 0U);
  BOOST_TEST(restore.report().resent_bytes > 0U);
}

boost::test_tools::assertion_result memory_may_change_while_it_is_read(boost::unit_test::test_unit_id) {
  boost::test_tools::assertion_result result(!with_thread_sanitizer);
  result.message() << "the thread sanitizer rightly reports a source that breaks the rules of publishing in place";
  return result;
}

struct Read {
  RestoreMethod method;
  bool in_arena;
  friend std::ostream& operator<<(std::ostream& out, const Read& read) {
    return out << to_string(to_method(read.method)) << (read.in_arena ? " from an arena" : " from ordinary memory");
  }
};

// The reads that the transport under test supports.
std::vector<Read> every_read() {
  std::vector<Read> reads;
  for (const bool in_arena : {false, true}) {
    for (const auto method : {RestoreMethod::packed, RestoreMethod::zcopy}) reads.push_back({method, in_arena});
    if (in_arena && maps_arenas()) reads.push_back({RestoreMethod::mapped, in_arena});
    if (!reads_ordinary_memory() && !(in_arena && maps_arenas())) continue;
    for (const auto method : {RestoreMethod::read, RestoreMethod::sieved_read}) reads.push_back({method, in_arena});
  }
  return reads;
}

// The reader wants the left half of each row, so that sieved reads include gaps.
BOOST_TEST_DECORATOR(*boost::unit_test::precondition(memory_may_change_while_it_is_read))
BOOST_DATA_TEST_CASE(memory_that_changes_while_it_is_read_is_found_out_by_digests_in_every_method,
                     boost::unit_test::data::make(every_read()), read) {
  const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {1024, 1024}};
  std::mutex mutex;
  std::string paths;
  SessionOptions options = quick();
  options.log = [&](LogLevel, std::string_view text) {
    const std::lock_guard lock(mutex);
    if (text.starts_with("path to ")) paths += text;
  };
  const auto port = free_port();
  Session source = Session::join(member(0, 2, port), quick());
  Session reader = Session::join(member(1, 2, port), options);
  TestShard held(spec, Layout::replicated(), Rank{0});
  const Arena arena = source.allocate(held.size_bytes());
  if (read.in_arena) held.use(arena.data());
  held.fill(1);
  Catalog catalog(Rank{0}, 1);
  held.add_to(catalog);
  const Publication publication = source.publish(catalog);

  TestShard wanted(spec, Layout::chunk(1, 2), Rank{0});
  Catalog target(Rank{0}, 2);
  wanted.add_to(target);
  RestoreOptions how = within(patience);
  how.staging_bytes = 512 << 10;
  how.ingress_bytes_per_second = 4 * wanted.size_bytes();  // a quarter of a second
  how.method = read.method;
  how.verify = Verify::digest;
  Restore restore = moving(reader, target, how, [&] { held.fill(2); });
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::transport_failed));
  const std::lock_guard lock(mutex);
  BOOST_TEST(paths.find(fmt::format(" bytes {}", to_string(to_method(read.method)))) != std::string::npos, paths);
}

// The session's thread cannot wait for itself; the memory is the caller's again when the destructor has returned.
BOOST_AUTO_TEST_CASE(a_restore_may_be_dropped_in_its_own_progress_callback) {
  const Deadline deadline(120s);
  Pair pair;
  std::vector<std::byte> after(Pair::bytes);
  auto restore = std::make_unique<Restore>(pair.reader.restore(pair.target, Pair::at(Pair::bytes / 60)));
  std::promise<void> dropped;
  restore->on_progress(
      [&](const Progress& progress) {
        if (progress.done_bytes == 0 || !restore) return;
        restore.reset();
        std::memset(pair.wanted.data(), 0x5a, Pair::bytes);
        dropped.set_value();
      },
      1ms);
  dropped.get_future().wait();
  pair.publication.retire(20s);  // whatever was on its way has come
  std::memset(after.data(), 0x5a, Pair::bytes);
  BOOST_TEST(std::memcmp(pair.wanted.data(), after.data(), Pair::bytes) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
