// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <functional>
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
    SessionOptions options;
    options.transport = transport_under_test();
    const auto port = free_port();
    source.emplace(Session::join(member(0, 2, port), options));
    reader.emplace(Session::join(member(1, 2, port), options));
    arena = source->allocate(bytes);
    held.use(arena.data());
    held.fill(1);
    publication.emplace(source->publish(catalog()));
  }
  static TensorSpec spec() { return {{"w", "exp_avg"}, DType::f32, {elements}}; }
  Catalog catalog() {
    Catalog result(Rank{0}, 1);
    held.add_to(result);
    return result;
  }
  Catalog target() {
    Catalog result(Rank{0}, 1);
    wanted.add_to(result);
    return result;
  }
  static RestoreOptions slowly(ByteCount bytes_per_second = bytes) {
    RestoreOptions options;
    options.timeout = patience;
    options.ingress_bytes_per_second = bytes_per_second;
    return options;
  }
  Restore start(ByteCount bytes_per_second = bytes) { return reader->restore(target(), slowly(bytes_per_second)); }
  /// Calls `act` once bytes have arrived; no more do meanwhile.
  Restore start_and(const std::function<void()>& act, ByteCount bytes_per_second = bytes) {
    return moving(*reader, target(), slowly(bytes_per_second), act);
  }

  static constexpr Extent elements = static_cast<Extent>(bytes / 4);
  TestShard held{spec(), Layout::replicated(), Rank{0}};
  TestShard wanted{spec(), Layout::replicated(), Rank{0}};
  std::optional<Session> source;
  std::optional<Session> reader;
  Arena arena;
  std::optional<Publication> publication;
};

ErrorCode code_of(Restore& restore) {
  try {
    restore.wait();
  } catch (const Error& error) {
    BOOST_TEST_MESSAGE(error.what());
    return error.code();
  }
  BOOST_FAIL("the restore committed");
  return ErrorCode::internal;
}

}  // namespace

BOOST_AUTO_TEST_CASE(retire_waits_for_a_reader_and_the_restore_commits) {
  Pair pair;
  Restore restore = pair.start_and([] {});
  pair.publication->retire(patience);
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(retire_times_out_by_name_and_the_reader_commits_the_next_generation_only) {
  Pair pair;
  std::optional<Error> error;
  Restore restore = pair.start_and([&] { error = failure_of([&] { pair.publication->retire(20ms); }); });
  BOOST_TEST((error->code() == ErrorCode::timed_out));
  BOOST_TEST((error->ranks() == std::vector<Rank>{Rank{1}}));
  BOOST_TEST(says(*error, "was retired while member 1 still read it; its leases are revoked"), error->what());
  BOOST_TEST(!restore.poll());
  TestShard next(Pair::spec(), Layout::replicated(), Rank{0});
  next.fill(2);
  Catalog catalog(Rank{0}, 1);
  next.add_to(catalog);
  *pair.publication = pair.source->publish(catalog);
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(2) == 0U);
  const RestoreReport& report = restore.report();
  BOOST_TEST(report.resent_bytes > 0U);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
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
  how.ingress_bytes_per_second = wanted.size_bytes();  // one second
  how.method = read.method;
  how.verify = Verify::digest;
  Restore restore = moving(reader, target, how, [&] { held.fill(2); });
  BOOST_TEST((code_of(restore) == ErrorCode::transport_failed));
  const std::lock_guard lock(mutex);
  BOOST_TEST(paths.find(fmt::format(" bytes {}", to_string(to_method(read.method)))) != std::string::npos, paths);
}

BOOST_AUTO_TEST_CASE(an_update_shows_the_new_generation_and_waits_for_readers_of_the_old) {
  Pair pair;
  Restore old = pair.start_and([] {});
  TestShard next(Pair::spec(), Layout::replicated(), Rank{0});
  next.fill(2);
  Catalog catalog(Rank{0}, 1);
  next.add_to(catalog);
  auto updated = std::async(std::launch::async, [&] { pair.publication->update(catalog, 2, Snapshot::none, 20s); });
  // There before the reader of the old one is done.
  TestShard seen(Pair::spec(), Layout::replicated(), Rank{0});
  Catalog target(Rank{0}, 1);
  seen.add_to(target);
  RestoreOptions options = within(patience);
  options.step = 2;
  pair.reader->restore(target, options).wait();
  BOOST_TEST(seen.wrong(2) == 0U);
  old.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  updated.get();
  pair.held.fill(9);  // the memory is the caller's again
  pair.publication->update(pair.catalog(), 3, Snapshot::copy, 20s);
  pair.publication->retire(20s);
  const Error error = failure_of([&] { pair.publication->update(catalog, 4, Snapshot::none, 20s); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(an_update_of_a_retired_publication_looks_at_no_memory) {
  Pair pair;
  pair.publication->retire(patience);
  Catalog unreadable(Rank{0}, 1);
  unreadable.add(Pair::spec(), Layout::replicated(), View{.data = reinterpret_cast<void*>(64)});
  const Error error = failure_of([&] { pair.publication->update(unreadable, 2, Snapshot::none, patience); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "has been withdrawn"));
}

BOOST_AUTO_TEST_CASE(a_step_that_the_source_has_passed_is_not_replaced_by_a_later_one) {
  Pair pair;
  pair.publication->update(pair.catalog(), 6, Snapshot::copy, 20s);
  RestoreOptions options = within(patience);
  options.step = 5;
  Restore restore = pair.reader->restore(pair.target(), options);
  BOOST_TEST((code_of(restore) == ErrorCode::step_mismatch));
}

BOOST_AUTO_TEST_CASE(an_update_that_times_out_names_the_readers_and_has_taken_place) {
  Pair pair;
  TestShard next(Pair::spec(), Layout::replicated(), Rank{0});
  next.fill(2);
  Catalog catalog(Rank{0}, 1);
  next.add_to(catalog);
  std::optional<Error> error;
  Restore restore =
      pair.start_and([&] { error = failure_of([&] { pair.publication->update(catalog, 2, Snapshot::none, 20ms); }); });
  BOOST_TEST((error->code() == ErrorCode::timed_out));
  BOOST_TEST((error->ranks() == std::vector<Rank>{Rank{1}}));
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(2) == 0U);
  pair.publication->retire(20s);
}

BOOST_AUTO_TEST_CASE(an_update_in_place_over_memory_of_the_live_generation_is_refused) {
  Pair pair;
  const Error error = failure_of([&] { pair.publication->update(pair.catalog(), 2, Snapshot::none, 20s); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "w:exp_avg in memory where w:exp_avg is published in place"));
  const TensorSpec last{{"v", "exp_avg"}, DType::f32, {2}};
  Catalog overlapping(Rank{0}, 1);
  overlapping.add(last, Layout::replicated(), View{.data = pair.arena.data() + Pair::bytes - 8});
  BOOST_TEST((failure_of([&] { pair.publication->update(overlapping, 2, Snapshot::none, 20s); }).code() ==
              ErrorCode::invalid_argument));
  Restore restore = pair.start();  // the old publication is unchanged
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  pair.held.fill(3);
  pair.publication->update(pair.catalog(), 2, Snapshot::copy, 20s);  // nothing reads it
  pair.held.fill(4);
  Restore after = pair.start();
  after.wait();
  BOOST_TEST(pair.wanted.wrong(3) == 0U);
}

BOOST_AUTO_TEST_CASE(a_source_that_goes_away_is_named_with_the_missing_boxes) {
  Pair pair;
  Restore restore = pair.start_and([&] {
    pair.source.reset();  // crash: retire() would withdraw the publication first
    pair.publication.reset();
  });
  try {
    restore.wait();
    BOOST_FAIL("the restore committed");
  } catch (const Error& error) {
    BOOST_TEST((error.code() == ErrorCode::peer_lost));
    BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
    BOOST_TEST(!error.gaps().empty());
  }
}

BOOST_AUTO_TEST_CASE(a_deadline_in_the_middle_of_the_move_names_the_slow_source) {
  Pair pair;
  RestoreOptions options = Pair::slowly(Pair::bytes / 4);
  options.timeout = 300ms;
  Restore restore = pair.reader->restore(pair.target(), options);
  BOOST_TEST((code_of(restore) == ErrorCode::timed_out));
  pair.publication->retire(patience);  // the lease ended with the restore
}

BOOST_AUTO_TEST_CASE(a_restore_can_be_cancelled_from_its_own_progress_callback) {
  Pair pair;
  std::string last;
  Restore restore = pair.start(Pair::bytes / 60);
  restore.on_progress(
      [&](const Progress& progress) {
        last = progress.stage;
        restore.cancel();
      },
      5ms);
  BOOST_TEST((code_of(restore) == ErrorCode::cancelled));
  BOOST_TEST(last == "failed");
  pair.publication->retire(patience);
}

BOOST_AUTO_TEST_CASE(progress_without_an_interval_is_reported_at_every_change_and_the_deadline_is_kept) {
  const Deadline limit(120s);  // a thread that only reports progress would never end the restore
  Pair pair;
  struct Seen {
    std::string stage;
    ByteCount done_bytes = 0;
    int calls = 0;
    int unchanged = 0;
  };
  const auto seen = std::make_shared<Seen>();  // owners: this case and the callback
  const auto restore = [&](Duration timeout) {
    RestoreOptions options = Pair::slowly(Pair::bytes / 300);
    options.timeout = timeout;
    Restore one = pair.reader->restore(pair.target(), options);
    one.on_progress(
        [seen](const Progress& progress) {
          const bool same = seen->calls > 0 && seen->stage == progress.stage && seen->done_bytes == progress.done_bytes;
          *seen = {progress.stage, progress.done_bytes, seen->calls + 1, seen->unchanged + (same ? 1 : 0)};
        },
        0s);
    one.wait();
  };
  const Error error = failure_by(1s, restore, [&](const Error&) { return seen->calls > 0; });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(seen->calls > 0);
  BOOST_TEST(seen->unchanged == 0);
  BOOST_TEST(seen->stage == "failed");
  pair.publication->retire(patience);
}

BOOST_AUTO_TEST_CASE(dropping_the_handle_cancels_and_frees_the_lease) {
  Pair pair;
  {
    Restore restore = pair.start_and([] {}, Pair::bytes / 60);
  }
  pair.publication->retire(patience);
}

// The session's thread cannot wait for itself; the memory is the caller's again when the destructor has returned.
BOOST_AUTO_TEST_CASE(a_restore_may_be_dropped_in_its_own_progress_callback) {
  const Deadline deadline(120s);
  Pair pair;
  std::vector<std::byte> after(Pair::bytes);
  auto restore = std::make_unique<Restore>(pair.start(Pair::bytes / 60));
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
  pair.publication->retire(20s);  // whatever was on its way has come
  std::memset(after.data(), 0x5a, Pair::bytes);
  BOOST_TEST(std::memcmp(pair.wanted.data(), after.data(), Pair::bytes) == 0);
}

BOOST_AUTO_TEST_CASE(the_rate_holds_remote_ingress) {
  Pair pair;
  Restore restore = pair.start();
  restore.wait();
  BOOST_TEST(restore.report().moved_bytes == Pair::bytes);
  BOOST_TEST(restore.report().seconds.move > 0.5);  // the limit gives one second; the test fails above twice the rate
}

BOOST_AUTO_TEST_CASE(closing_the_reading_session_ends_its_restores) {
  Pair pair;
  Restore restore = pair.start_and([] {}, Pair::bytes / 60);
  pair.reader->close(1s);
  BOOST_TEST((code_of(restore) == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_SUITE_END()
