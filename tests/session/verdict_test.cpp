// SPDX-License-Identifier: Apache-2.0
// A restore's verdict on sources that are absent, have departed, or have moved to another member. In made time.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <memory>
#include <optional>

#include "simulation/scenario.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(verdict)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using shardwire::simulation::Scenario;
using shardwire::simulation::Stopped;

namespace {

constexpr Duration soon = 2s;  // well before any deadline: the notice of a loss is the longest wait

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

/// A member with a tensor to publish.
class Source {
 public:
  Source(Scenario& made, int rank, Layout layout, int layout_rank, int ranks)
      : held_(spec, std::move(layout), Rank{layout_rank}), catalog_(Rank{layout_rank}, ranks) {
    SessionOptions options;
    options.log = [refusals = refusals_](LogLevel, std::string_view text) {
      if (text.find("refused member") != std::string_view::npos) ++*refusals;
    };
    session.emplace(made.join(rank, options));
    held_.add_to(catalog_);
  }
  void publish(std::uint64_t seed, std::int64_t step) {
    held_.fill(seed);
    publication_ = session->publish(catalog_, {.step = step});
  }
  void retire() { publication_.retire(20s); }
  void die() { session.reset(); }
  void leave() { session->close(20s); }
  /// A reader's request was refused.
  [[nodiscard]] bool has_refused() const { return *refusals_ > 0; }

  std::optional<Session> session;

 private:
  std::shared_ptr<int> refusals_ = std::make_shared<int>(0);  // owners: this and the log
  TestShard held_;
  Catalog catalog_;
  Publication publication_;
};

/// Wants the whole tensor.
struct Target {
  TestShard wanted{spec, Layout::replicated(), Rank{0}};
  Catalog catalog{Rank{0}, 1};

  Target() {
    wanted.fill(4711);
    wanted.add_to(catalog);
  }
};

RestoreOptions at_step(std::int64_t step, Duration timeout) {
  RestoreOptions options = within(timeout);
  options.step = step;
  return options;
}

void require_lost(Session& session, int member) {
  const Error error = failure_of([&] { session.gather("until lost", {}, patience); });
  BOOST_REQUIRE((error.code() == ErrorCode::peer_lost && error.ranks() == std::vector{Rank{member}}));
}

/// Member 0 is the rendezvous, member 1 is a source, member 2 reads.
struct Job {
  Scenario made{3};
  Session host = made.join(0);
  Source source{made, 1, Layout::replicated(), 0, 1};
  bool found_stale = false;  // the reader has heard from a source that the directory is late
  Session reader = made.join(2, watched());
  Target target;

  SessionOptions watched() {
    SessionOptions options;
    options.log = [this](LogLevel, std::string_view text) {
      if (text.find("which the directory does not know yet") != std::string_view::npos) found_stale = true;
    };
    return options;
  }
  Job() {
    source.publish(1, 1);
    reader.restore(target.catalog, within(patience)).wait();  // it learns the source and its address
    target.wanted.fill(4711);
  }
  Error failure(const Catalog& wanted, const RestoreOptions& options) {
    return failure_of([&] { reader.restore(wanted, options).wait(); });
  }
};

/// Sources 1 and 2 publish halves; 0 and 3 publish nothing.
struct Halves {
  Scenario made{5};
  Session host = made.join(0);
  Source first{made, 1, Layout::chunk(0, 2), 0, 2};
  Source second{made, 2, Layout::chunk(0, 2), 1, 2};
  std::optional<Session> other = made.join(3);
  Session reader = made.join(4);
  Target target;

  Error failure(const RestoreOptions& options) {
    return failure_of([&] { reader.restore(target.catalog, options).wait(); });
  }
};

/// Requires: no reader waits for its deadline.
Error failure_soon(Scenario& made, Restore& restore) {
  const auto began = made.now();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((made.now() - began < soon));
  return error;
}

void check_missing(Scenario& made, Restore& restore) {
  const Error error = failure_soon(made, restore);
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {32, 16}}, Rank{0}}}));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "source rank 1 of 2 has not published 'state': member 2"));
}

}  // namespace

// --- no possible source is left ---

BOOST_AUTO_TEST_CASE(a_source_that_left_in_order_is_not_waited_for) {
  Halves job;
  job.first.publish(1, 1);
  job.second.leave();
  Restore restore = job.reader.restore(job.target.catalog, within(patience));
  check_missing(job.made, restore);
}

BOOST_AUTO_TEST_CASE(a_source_that_dies_before_it_publishes_is_not_waited_for) {
  Halves job;
  job.first.publish(1, 1);
  Restore restore = job.reader.restore(job.target.catalog, within(patience));
  job.second.die();
  check_missing(job.made, restore);
}

BOOST_AUTO_TEST_CASE(what_is_not_published_yet_is_a_time_out_that_names_the_ranks) {
  Halves job;
  job.first.publish(1, 1);
  RestoreOptions options = within(1s);
  options.discovery_grace = 100ms;
  const Error error = job.failure(options);
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {32, 16}}, Rank{0}}}));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "source rank 1 of 2 has not published 'state' before the deadline"));
}

BOOST_AUTO_TEST_CASE(what_nobody_holds_though_all_have_published_is_a_mismatch) {
  Scenario made(3);
  const Layout rows = Layout::boxes({{Rank{0}, {{{0, 0}, {32, 16}}}}, {Rank{1}, {{{40, 0}, {24, 16}}}}});
  Source first(made, 0, rows, 0, 2);
  Source second(made, 1, rows, 1, 2);
  Session reader = made.join(2);
  first.publish(1, 1);
  second.publish(1, 1);
  Target target;
  Restore restore = reader.restore(target.catalog, within(patience));
  const Error error = failure_soon(made, restore);
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST(!error.retryable());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {8, 16}}, Rank{0}}}));
}

BOOST_AUTO_TEST_CASE(a_reader_that_dies_does_not_stand_for_a_source_that_has_yet_to_publish) {
  Halves job;
  job.first.publish(1, 1);
  job.other.reset();
  require_lost(job.reader, 3);
  Restore restore = job.reader.restore(job.target.catalog, within(patience));
  job.made.pass(patience / 2);
  job.second.publish(1, 1);
  restore.wait();
  BOOST_TEST(job.target.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(the_last_of_a_job_does_not_wait_for_sources_that_never_published) {
  Scenario made(2);
  Session reader = made.join(0);
  Source source(made, 1, Layout::replicated(), 0, 1);
  Target target;
  Restore restore = reader.restore(target.catalog, within(patience));
  source.leave();
  const Error error = failure_soon(made, restore);
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "no member publishes 'state', and none is left that could: member 1 has left"));
}

BOOST_AUTO_TEST_CASE(a_dead_replica_costs_no_discovery_grace) {
  Scenario made(3);
  Session reader = made.join(0);
  Source first(made, 1, Layout::replicated(), 0, 2);
  Source second(made, 2, Layout::replicated(), 1, 2);
  first.publish(1, 1);
  second.publish(1, 1);
  second.die();
  require_lost(reader, 2);
  RestoreOptions options = within(patience);
  options.discovery_grace = 60s;
  for (int round = 0; round < 3; ++round) {
    Target target;
    const auto began = made.now();
    reader.restore(target.catalog, options).wait();
    BOOST_TEST((made.now() - began < soon));
    BOOST_TEST(target.wanted.wrong(1) == 0U);
  }
}

// --- a roster that is older than the source ---

// The rendezvous is stopped, so that the reader cannot know the next generation yet.
BOOST_AUTO_TEST_CASE(a_restore_that_meets_a_withdrawn_generation_plans_again) {
  Job job;
  std::optional<Stopped> hold(std::in_place, job.made, 0);
  job.source.retire();
  job.source.publish(2, 2);
  Restore restore = job.reader.restore(job.target.catalog, within(patience));  // read without a lease, as before
  Catalog other(Rank{0}, 1);
  TestShard rows(spec, Layout::boxes({{Rank{0}, {{{3, 0}, {9, 16}}}}}), Rank{0});
  rows.add_to(other);
  Restore leased = job.reader.restore(other, within(patience));
  job.made.wait_until([&] { return job.source.has_refused(); });
  hold.reset();
  restore.wait();
  leased.wait();
  BOOST_TEST(job.target.wanted.wrong(2) == 0U);
  BOOST_TEST(rows.wrong(2) == 0U);
  const RestoreReport& report = restore.report();
  BOOST_TEST(report.moved_bytes + report.local_bytes ==
             report.needed_bytes + report.overread_bytes + report.resent_bytes);
}

BOOST_AUTO_TEST_CASE(a_shape_that_is_not_published_any_more_is_no_mismatch) {
  Job job;
  const TensorSpec longer{spec.key, spec.dtype, {96, 16}};
  TestShard held(longer, Layout::replicated(), Rank{0});
  TestShard wanted(longer, Layout::replicated(), Rank{0});
  Catalog published(Rank{0}, 1);
  Catalog catalog(Rank{0}, 1);
  held.fill(2);
  held.add_to(published);
  wanted.add_to(catalog);

  std::optional<Stopped> hold(std::in_place, job.made, 0);
  job.source.retire();
  const Publication again = job.source.session->publish(published, {.step = 2});
  Restore restore = job.reader.restore(catalog, within(patience));
  job.made.wait_until([&] { return job.found_stale; });
  hold.reset();
  restore.wait();
  BOOST_TEST(wanted.wrong(2) == 0U);
}

BOOST_AUTO_TEST_CASE(a_shape_that_nothing_takes_the_place_of_is_withdrawn_at_the_deadline) {
  Job job;
  const Stopped hold(job.made, 0);
  job.source.retire();
  TestShard wanted({spec.key, spec.dtype, {96, 16}}, Layout::replicated(), Rank{0});
  Catalog catalog(Rank{0}, 1);
  wanted.add_to(catalog);
  const Error error = job.failure(catalog, within(2s));
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
}

// It is asked whether it still publishes the shape, and cannot answer.
BOOST_AUTO_TEST_CASE(a_mismatch_with_a_source_that_hangs_is_final_after_the_notice) {
  Job job;
  const Stopped hangs(job.made, 1);
  TestShard wanted({spec.key, spec.dtype, {96, 16}}, Layout::replicated(), Rank{0});
  Catalog catalog(Rank{0}, 1);
  wanted.add_to(catalog);
  RestoreOptions options = within(patience);
  options.notice = 50ms;
  const Error error = job.failure(catalog, options);
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_published_any_more_is_a_step_mismatch) {
  Job job;
  std::optional<Stopped> hold(std::in_place, job.made, 0);
  job.source.retire();
  job.source.publish(2, 2);
  Restore restore = job.reader.restore(job.target.catalog, at_step(1, patience));
  job.made.wait_until([&] { return job.source.has_refused(); });
  hold.reset();
  const Error error = failure_soon(job.made, restore);
  BOOST_TEST((error.code() == ErrorCode::step_mismatch));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(says(error, "'state' is published at step 2 by source rank 0, and step 1 is wanted"));
}

BOOST_AUTO_TEST_CASE(a_generation_that_nothing_takes_the_place_of_is_withdrawn_at_the_deadline) {
  Job job;
  const Stopped hold(job.made, 0);
  job.source.retire();
  const Error error = job.failure(job.target.catalog, within(500ms));
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
}

BOOST_AUTO_TEST_CASE(a_generation_that_others_cannot_take_the_place_of_is_withdrawn_too) {
  Halves job;
  job.first.publish(1, 1);
  job.second.publish(1, 1);
  job.reader.restore(job.target.catalog, within(patience)).wait();
  const Stopped hold(job.made, 0);
  job.second.retire();
  const Error error = job.failure(within(1s));
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST_REQUIRE(error.gaps().size() == 1U);
  BOOST_TEST((error.gaps().front().box == Box{{32, 0}, {32, 16}}));
}

BOOST_AUTO_TEST_CASE(a_restore_that_waits_for_another_generation_can_be_cancelled) {
  Job job;
  const Stopped hold(job.made, 0);
  job.source.retire();
  Restore restore = job.reader.restore(job.target.catalog, within(patience));
  job.made.pass(50ms);
  restore.cancel();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
}

// --- messages ---

BOOST_AUTO_TEST_CASE(another_step_than_the_published_one_is_said_to_be_so) {
  Halves job;
  job.first.publish(1, 10);
  job.second.publish(1, 10);
  const Error later = job.failure(at_step(11, 500ms));
  BOOST_TEST((later.code() == ErrorCode::step_mismatch));
  BOOST_TEST(says(later, "'state' is published at step 10 by source ranks 0, 1, and step 11 is wanted"));
  BOOST_TEST((later.ranks() == std::vector{Rank{0}, Rank{1}}));
  Restore restore = job.reader.restore(job.target.catalog, at_step(9, patience));
  const Error earlier = failure_soon(job.made, restore);  // steps of sources only increase
  BOOST_TEST((earlier.code() == ErrorCode::step_mismatch));
}

BOOST_AUTO_TEST_CASE(layouts_over_different_numbers_of_ranks_are_told_apart) {
  Scenario made(2);
  Source first(made, 0, Layout::replicated(), 0, 1);
  Source second(made, 1, Layout::chunk(0, 4), 2, 4);
  first.publish(1, 1);
  second.publish(1, 1);
  Target target;
  // The rendezvous knows both before the second one asks.
  const Error error = failure_of([&] { second.session->restore(target.catalog, within(patience)).wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST(says(error, "source rank 0 declares a layout over 1 rank, source rank 2 over 4"));
}

BOOST_AUTO_TEST_CASE(a_time_out_names_the_source_that_is_behind_and_no_other) {
  Halves job;
  job.first.publish(1, 1);
  job.second.publish(1, 1);
  job.reader.restore(job.target.catalog, within(patience)).wait();
  TestShard rows(spec, Layout::boxes({{Rank{0}, {{{3, 0}, {50, 16}}}}}), Rank{0});
  Catalog catalog(Rank{0}, 1);
  rows.add_to(catalog);
  const Stopped hangs(job.made, 2);
  const Error error = failure_of([&] { job.reader.restore(catalog, within(1s)).wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "waiting for an answer from source rank 1 (10.0.0.3:"));
}

BOOST_AUTO_TEST_CASE(a_time_out_before_anything_is_published_names_who_could_have) {
  Halves job;
  job.other->close(10s);
  require_lost(job.reader, 3);
  const Error nothing = job.failure(within(200ms));
  BOOST_TEST((nothing.code() == ErrorCode::timed_out));
  BOOST_TEST((nothing.ranks() == std::vector{Rank{0}, Rank{1}, Rank{2}}));
  BOOST_TEST(says(nothing, "no member publishes 'state', member 3 has left; members 0..2 could have"));
}

BOOST_AUTO_TEST_CASE(a_time_out_after_the_publishers_are_lost_names_them_and_no_boxes) {
  Halves job;
  job.first.publish(1, 1);
  job.first.die();
  require_lost(job.reader, 1);
  const Error error = job.failure(within(200ms));
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}, Rank{2}, Rank{3}}));
  BOOST_TEST(error.gaps().empty());
  BOOST_TEST(says(error, "no member publishes 'state', member 1 is lost; members 0, 2, 3 could have"), error.what());
}

BOOST_AUTO_TEST_SUITE_END()
