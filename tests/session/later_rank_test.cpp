// SPDX-License-Identifier: Apache-2.0
// The only holder of something is lost, and a layout rank that was not published when the restore was planned holds the same. In made
// time.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "simulation/slow_restores.hpp"

BOOST_AUTO_TEST_SUITE(later_rank)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;
using shardwire::simulation::when_bound;

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};
constexpr int members = 5;

// Three ranks: the last one holds what the second one holds, and a part of the first one's. `short_of` rows are held by the
// second one alone.
Layout overlapping(int short_of) {
  return Layout::boxes(
      {{Rank{0}, {{{0, 0}, {32, 16}}}}, {Rank{1}, {{{32, 0}, {32, 16}}}}, {Rank{2}, {{{16, 0}, {48 - short_of, 16}}}}});
}

// Member r + 1 publishes layout rank r.
struct Source {
  Source(Scenario& made, int rank, const Layout& layout, TensorSpec of = spec)
      : held(std::move(of), layout, Rank{rank}), catalog(Rank{rank}, 3) {
    session.emplace(made.join(rank + 1));
    held.add_to(catalog);
  }
  void publish(std::int64_t step = 5) {
    held.fill(1);
    publication = session->publish(catalog, {.step = step});
  }

  std::optional<Session> session;
  TestShard held;
  Catalog catalog;
  Publication publication;
};

// The second rank is lost once all is bound.
struct Job {
  explicit Job(int short_of = 0, TensorSpec of_later = spec)
      : layout(overlapping(short_of)), later(made, 2, layout, std::move(of_later)) {
    first.publish();
    second.publish();
    reader.emplace(made.join(4, when_bound([this] {
                               second.session.reset();
                               was_lost = true;
                             })));
    wanted.fill(4711);
    wanted.add_to(catalog);
  }
  Restore begin(RestoreMethod method, Duration timeout) {
    RestoreOptions options = within(timeout);
    options.method = method;
    options.discovery_grace = 10ms;
    return reader->restore(catalog, options);
  }
  void await_loss() {
    made.wait_until([this] { return was_lost; });
  }
  void require_complete(const RestoreReport& report) {
    BOOST_TEST(wanted.wrong(1) == 0U);
    BOOST_TEST(report.needed_bytes == 64U * 16U * 4U);
    BOOST_TEST(report.resent_bytes == 0U);
    BOOST_TEST(report.moved_bytes + report.local_bytes == report.needed_bytes + report.overread_bytes);
  }

  Scenario made{members};
  Session host = made.join(0);
  Layout layout;
  Source first{made, 0, layout};
  Source second{made, 1, layout};
  Source later;
  bool was_lost = false;
  std::optional<Session> reader;
  TestShard wanted{spec, Layout::replicated(), Rank{0}};
  Catalog catalog{Rank{0}, 1};
};

const RestoreMethod methods[] = {RestoreMethod::zcopy, RestoreMethod::packed};

}  // namespace

BOOST_DATA_TEST_CASE(a_rank_that_is_published_after_the_loss_gives_what_is_missing_and_nothing_else,
                     boost::unit_test::data::xrange(2), which) {
  Job job;
  Restore restore = job.begin(methods[which], patience);
  const auto owed = std::make_shared<ByteCount>(0);  // owners: this case and the callback
  restore.on_progress([owed](const Progress& progress) { *owed = progress.total_bytes - progress.done_bytes; }, 1ms);
  job.await_loss();
  job.made.wait_until([&] { return *owed == 32U * 16U * 4U; });  // what waits for a holder
  BOOST_TEST(!restore.poll());
  job.later.publish();
  restore.wait();
  job.require_complete(restore.report());
  BOOST_REQUIRE(restore.report().lost.size() == 1U);
  BOOST_TEST((restore.report().lost[0].rank == Rank{1}));
}

BOOST_AUTO_TEST_CASE(a_rank_that_was_published_between_the_plan_and_the_loss_does_too) {
  Job job;
  std::optional<Session>& lost = job.second.session;
  job.reader->close(20s);
  job.reader.emplace(job.made.join(4, when_bound([&job, &lost] {
                                     if (!lost) return;  // the second time
                                     job.later.publish();
                                     lost.reset();
                                   })));
  Restore restore = job.begin(RestoreMethod::zcopy, patience);
  restore.wait();
  job.require_complete(restore.report());
}

BOOST_AUTO_TEST_CASE(the_restore_ends_as_soon_as_nobody_is_left_who_may_publish_it) {
  Job job;
  Restore restore = job.begin(RestoreMethod::zcopy, patience);
  job.await_loss();
  job.made.pass(patience / 2);
  BOOST_TEST(!restore.poll());
  job.later.session->close(20s);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_REQUIRE(error.gaps().size() == 1U);
  BOOST_TEST((error.gaps()[0].box == Box{{32, 0}, {32, 16}}));
  BOOST_TEST(job.wanted.wrong(1) > 0U);
}

BOOST_AUTO_TEST_CASE(a_rank_that_holds_too_little_or_another_step_is_no_holder) {
  for (const bool other_step : {false, true}) {
    Job job(other_step ? 0 : 8);
    Restore restore = job.begin(RestoreMethod::zcopy, patience);
    job.await_loss();
    job.later.publish(other_step ? 6 : 5);
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::peer_lost), error.what());
    BOOST_TEST((error.gaps()[0].box == Box{{32, 0}, {32, 16}}));
    BOOST_TEST(job.wanted.wrong(1) > 0U);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_with_another_shape_is_refused_and_nothing_is_committed) {
  Job job(0, {spec.key, spec.dtype, {64, 17}});
  Restore restore = job.begin(RestoreMethod::zcopy, patience);
  job.await_loss();
  job.later.publish();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch), error.what());
  BOOST_TEST(job.wanted.wrong(1) > 0U);
}

BOOST_AUTO_TEST_CASE(a_resumed_restore_reads_from_it_and_moves_nothing_twice) {
  Job job;
  Restore restore = job.begin(RestoreMethod::zcopy, 1s);
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out), error.what());
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  restore.resume(patience);
  job.later.publish();
  restore.wait();
  job.require_complete(restore.report());
}

BOOST_AUTO_TEST_SUITE_END()
