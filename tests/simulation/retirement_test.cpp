// SPDX-License-Identifier: Apache-2.0
// A publication that is retired or updated, or whose restore ends, while it is read. In made time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "simulation/slow_restores.hpp"

BOOST_AUTO_TEST_SUITE(retirement)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using namespace shardwire::simulation;

namespace {

const auto fabrics = boost::unit_test::data::make(made_fabrics);

ErrorCode code_of(Restore& restore) {
  return failure_of([&] { restore.wait(); }).code();
}

}  // namespace

BOOST_DATA_TEST_CASE(retire_waits_for_a_reader_and_the_restore_commits, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  Restore restore = pair.begun(slowly());
  pair.publication.retire(patience);
  restore.wait();
  BOOST_TEST(pair.wanted.is(1));
}

BOOST_DATA_TEST_CASE(retire_times_out_by_name_and_the_reader_commits_the_next_generation_only, fabrics, fabric) {
  MadeTensor next(2);
  Pair pair(fabric, true, 0);
  Restore restore = pair.begun(slowly());
  const auto began = pair.made.now();
  const Error error = failure_of([&] { pair.publication.retire(20ms); });
  BOOST_TEST((pair.made.now() - began >= 20ms && pair.made.now() - began < 40ms));
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
  BOOST_TEST(says(error, "was retired while member 1 still read it; its leases are revoked"), error.what());
  BOOST_TEST(!restore.poll());
  pair.publication = pair.source->publish(next.catalog());
  restore.wait();
  BOOST_TEST(pair.wanted.is(2));
  const RestoreReport& report = restore.report();
  BOOST_TEST(report.resent_bytes > 0U);
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
}

BOOST_DATA_TEST_CASE(an_update_shows_the_new_generation_and_waits_for_readers_of_the_old, fabrics, fabric) {
  MadeTensor next(2);
  Pair pair(fabric, true, 0);
  Restore old = pair.begun(slowly());
  MadeTensor seen(7);
  const auto began = pair.made.now();
  pair.made.together({0, 1}, [&](int member) {
    if (member == 0) {
      pair.publication.update(next.catalog(), 2, Snapshot::none, 20s);
      require(pair.made.now() - began > 500ms, "it waits for the reader of the old one");
      return;
    }
    RestoreOptions options = within(patience);
    options.step = 2;
    pair.reader->restore(seen.catalog(), options).wait();
    require(!old.poll(), "the new one is there before the reader of the old one is done");
  });
  BOOST_TEST(seen.is(2));
  old.wait();
  BOOST_TEST(pair.wanted.is(1));
  pair.held->fill(9);  // the memory is the caller's again
  pair.publication.update(pair.held->catalog(), 3, Snapshot::copy, 20s);
  pair.publication.retire(20s);
  const Error error = failure_of([&] { pair.publication.update(next.catalog(), 4, Snapshot::none, 20s); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(an_update_of_a_retired_publication_looks_at_no_memory) {
  Pair pair("streams", true, 0);
  pair.publication.retire(patience);
  Catalog unreadable(Rank{0}, 1);
  unreadable.add(made_tensor, Layout::replicated(), View{.data = reinterpret_cast<void*>(64)});
  const Error error = failure_of([&] { pair.publication.update(unreadable, 2, Snapshot::none, patience); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "has been withdrawn"));
}

BOOST_AUTO_TEST_CASE(a_step_that_the_source_has_passed_is_not_replaced_by_a_later_one) {
  Pair pair("streams", true, 0);
  pair.publication.update(pair.held->catalog(), 6, Snapshot::copy, 20s);
  RestoreOptions options = within(patience);
  options.step = 5;
  Restore restore = pair.restore(options);
  BOOST_TEST((code_of(restore) == ErrorCode::step_mismatch));
}

BOOST_DATA_TEST_CASE(an_update_that_times_out_names_the_readers_and_has_taken_place, fabrics, fabric) {
  MadeTensor next(2);
  Pair pair(fabric, true, 0);
  Restore restore = pair.begun(slowly());
  const auto began = pair.made.now();
  const Error error = failure_of([&] { pair.publication.update(next.catalog(), 2, Snapshot::none, 20ms); });
  BOOST_TEST((pair.made.now() - began >= 20ms && pair.made.now() - began < 40ms));
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
  restore.wait();
  BOOST_TEST(pair.wanted.is(2));
  pair.publication.retire(20s);
}

BOOST_AUTO_TEST_CASE(an_update_in_place_over_memory_of_the_live_generation_is_refused) {
  Pair pair("streams", true, 0);
  const Error error = failure_of([&] { pair.publication.update(pair.held->catalog(), 2, Snapshot::none, 20s); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  BOOST_TEST(says(error, "w:exp_avg in memory where w:exp_avg is published in place"));
  const TensorSpec last{{"v", "exp_avg"}, DType::f32, {2}};
  Catalog overlapping(Rank{0}, 1);
  overlapping.add(last, Layout::replicated(), View{.data = pair.held->shard.data() + made_bytes - 8});
  BOOST_TEST((failure_of([&] { pair.publication.update(overlapping, 2, Snapshot::none, 20s); }).code() ==
              ErrorCode::invalid_argument));
  pair.restore(slowly()).wait();  // the old publication is unchanged
  BOOST_TEST(pair.wanted.is(1));
  pair.held->fill(3);
  pair.publication.update(pair.held->catalog(), 2, Snapshot::copy, 20s);  // nothing reads it
  pair.held->fill(4);
  pair.restore(slowly()).wait();
  BOOST_TEST(pair.wanted.is(3));
}

BOOST_DATA_TEST_CASE(a_deadline_in_the_middle_of_the_move_names_the_slow_source, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  Restore restore = pair.restore(slowly_within(300ms));
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{0}}));
  pair.publication.retire(1s);  // the lease ended with the restore
}

BOOST_DATA_TEST_CASE(a_restore_can_be_cancelled_from_its_own_progress_callback, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  std::string last;
  Restore restore = pair.restore(slowly({}, made_bytes / 60));
  restore.on_progress(
      [&](const Progress& progress) {
        last = progress.stage;
        restore.cancel();
      },
      5ms);
  BOOST_TEST((code_of(restore) == ErrorCode::cancelled));
  BOOST_TEST(last == "failed");
  pair.publication.retire(1s);
}

BOOST_DATA_TEST_CASE(progress_without_an_interval_is_reported_at_every_change_and_the_deadline_is_kept, fabrics,
                     fabric) {
  Pair pair(fabric, true, 0);
  std::vector<std::pair<std::string, ByteCount>> seen;
  RestoreOptions options = slowly_within(10s);
  options.ingress_bytes_per_second = made_bytes / 30;
  const auto began = pair.made.now();
  Restore restore = pair.restore(options);
  restore.on_progress([&](const Progress& progress) { seen.emplace_back(progress.stage, progress.done_bytes); }, 0s);
  BOOST_TEST((code_of(restore) == ErrorCode::timed_out));
  BOOST_TEST((pair.made.now() - began < 10s + slack));
  BOOST_TEST_REQUIRE(seen.size() > 2U);
  BOOST_TEST((std::ranges::adjacent_find(seen) == seen.end()));
  BOOST_TEST(seen.back().first == "failed");
  pair.publication.retire(1s);
}

BOOST_DATA_TEST_CASE(dropping_the_handle_cancels_and_frees_the_lease, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  static_cast<void>(pair.begun(slowly({}, made_bytes / 60), 1));
  pair.publication.retire(1s);
}

BOOST_DATA_TEST_CASE(the_rate_holds_remote_ingress, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  const auto began = pair.made.now();
  Restore restore = pair.restore(slowly());
  restore.wait();
  BOOST_TEST(restore.report().moved_bytes == made_bytes);
  const auto took = pair.made.now() - began;
  BOOST_TEST((took > 900ms && took < 1200ms));
}

BOOST_DATA_TEST_CASE(closing_the_reading_session_ends_its_restores, fabrics, fabric) {
  Pair pair(fabric, true, 0);
  Restore restore = pair.begun(slowly({}, made_bytes / 60), 1);
  pair.reader->close(1s);
  BOOST_TEST((code_of(restore) == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_SUITE_END()
