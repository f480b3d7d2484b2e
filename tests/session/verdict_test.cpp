// SPDX-License-Identifier: Apache-2.0
// A restore's verdict on sources that are absent, have departed, or have moved to another member.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <optional>

#include "support/blocked.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(verdict)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

using WallClock = std::chrono::steady_clock;

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

/// A member with a tensor to publish.
class Source {
 public:
  Source(int rank, int members, std::uint16_t port, Layout layout, int layout_rank, int ranks)
      : held_(spec, std::move(layout), Rank{layout_rank}), catalog_(Rank{layout_rank}, ranks) {
    SessionOptions options = quick();
    options.log = [refusals = refusals_](LogLevel, std::string_view text) {
      if (text.find("refused member") != std::string_view::npos) ++*refusals;
    };
    session.emplace(Session::join(member(rank, members, port), options));
    held_.add_to(catalog_);
  }
  void publish(std::uint64_t seed, std::int64_t step) {
    held_.fill(seed);
    publication_ = session->publish(catalog_, {.step = step});
  }
  void retire() { publication_.retire(20s); }
  void die() { session.reset(); }
  void leave() { session->close(20s); }
  /// Returns once a reader's request was refused, or after a time limit.
  void wait_for_refusal() const {
    for (const auto end = WallClock::now() + 5s; *refusals_ == 0 && WallClock::now() < end;)
      std::this_thread::sleep_for(1ms);
  }

  std::optional<Session> session;

 private:
  std::shared_ptr<std::atomic<int>> refusals_ = std::make_shared<std::atomic<int>>(0);
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

void wait_until_lost(Session& session, int member) {
  const std::vector<Rank> expected{Rank{member}};
  for (int round = 0; round < 1000; ++round) {
    try {
      session.gather("until lost " + std::to_string(round), {}, 10ms);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::peer_lost && error.ranks() == expected) return;
    }
  }
  throw std::runtime_error("the loss was not noticed");
}

/// Member 0 is the rendezvous, which can be blocked; member 1 is a source; member 2 reads.
struct Job {
  std::uint16_t port = free_port();
  Session host = Session::join(member(0, 3, port), quick());
  Source source{1, 3, port, Layout::replicated(), 0, 1};
  std::atomic<bool> found_stale = false;  // the reader has heard from a source that the directory is late
  Session reader = Session::join(member(2, 3, port), watched());
  Target target;

  SessionOptions watched() {
    SessionOptions options = quick();
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
};

/// Sources 1 and 2 publish halves; 0 and 3 publish nothing.
struct Halves {
  static constexpr int members = 5;
  std::uint16_t port = free_port();
  Session host = Session::join(member(0, members, port), quick());
  Source first{1, members, port, Layout::chunk(0, 2), 0, 2};
  Source second{2, members, port, Layout::chunk(0, 2), 1, 2};
  std::optional<Session> other = Session::join(member(3, members, port), quick());
  Session reader = Session::join(member(4, members, port), quick());
};

void check_missing(Restore& restore, WallClock::time_point began) {
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((WallClock::now() - began < 30s));  // does not wait for the deadline
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
  Target target;
  const auto began = WallClock::now();
  Restore restore = job.reader.restore(target.catalog, within(patience));
  check_missing(restore, began);
}

BOOST_AUTO_TEST_CASE(a_source_that_dies_before_it_publishes_is_not_waited_for) {
  Halves job;
  job.first.publish(1, 1);
  Target target;
  const auto began = WallClock::now();
  Restore restore = job.reader.restore(target.catalog, within(patience));
  job.second.die();
  check_missing(restore, began);
}

BOOST_AUTO_TEST_CASE(what_is_not_published_yet_is_a_time_out_that_names_the_ranks) {
  Halves job;
  job.first.publish(1, 1);
  Target target;
  const auto restore = [&](Duration timeout) {
    RestoreOptions options = within(timeout);
    options.discovery_grace = 100ms;
    job.reader.restore(target.catalog, options).wait();
  };
  const Error error = failure_by(1s, restore, [](const Error& one) { return !one.gaps().empty(); });  // of a plan
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {32, 16}}, Rank{0}}}));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "source rank 1 of 2 has not published 'state' before the deadline"));
}

BOOST_AUTO_TEST_CASE(what_nobody_holds_though_all_have_published_is_a_mismatch) {
  const auto port = free_port();
  const Layout rows = Layout::boxes({{Rank{0}, {{{0, 0}, {32, 16}}}}, {Rank{1}, {{{40, 0}, {24, 16}}}}});
  Source first(0, 3, port, rows, 0, 2);
  Source second(1, 3, port, rows, 1, 2);
  Session reader = Session::join(member(2, 3, port), quick());
  first.publish(1, 1);
  second.publish(1, 1);
  Target target;
  const auto began = WallClock::now();
  const Error error = failure_of([&] { reader.restore(target.catalog, within(patience)).wait(); });
  BOOST_TEST((WallClock::now() - began < 30s));
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
  BOOST_TEST(!error.retryable());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {8, 16}}, Rank{0}}}));
}

BOOST_AUTO_TEST_CASE(a_reader_that_dies_does_not_stand_for_a_source_that_has_yet_to_publish) {
  Halves job;
  job.first.publish(1, 1);
  job.other.reset();
  wait_until_lost(job.reader, 3);
  Target target;
  Restore restore = job.reader.restore(target.catalog, within(patience));
  for (const auto end = WallClock::now() + 300ms; !restore.poll() && WallClock::now() < end;)
    std::this_thread::sleep_for(1ms);
  job.second.publish(1, 1);
  restore.wait();
  BOOST_TEST(target.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(the_last_of_a_job_does_not_wait_for_sources_that_never_published) {
  const auto port = free_port();
  Session reader = Session::join(member(0, 2, port), quick());
  Source source(1, 2, port, Layout::replicated(), 0, 1);
  Target target;
  const auto began = WallClock::now();
  Restore restore = reader.restore(target.catalog, within(patience));
  source.leave();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((WallClock::now() - began < 30s));
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "no member publishes 'state', and none is left that could: member 1 has left"));
}

BOOST_AUTO_TEST_CASE(a_dead_replica_costs_no_discovery_grace) {
  const auto port = free_port();
  Session reader = Session::join(member(0, 3, port), quick());
  Source first(1, 3, port, Layout::replicated(), 0, 2);
  Source second(2, 3, port, Layout::replicated(), 1, 2);
  first.publish(1, 1);
  second.publish(1, 1);
  second.die();
  wait_until_lost(reader, 2);
  RestoreOptions options = within(patience);
  options.discovery_grace = 60s;
  for (int round = 0; round < 3; ++round) {
    Target target;
    const auto began = WallClock::now();
    reader.restore(target.catalog, options).wait();
    BOOST_TEST((WallClock::now() - began < 30s));
    BOOST_TEST(target.wanted.wrong(1) == 0U);
  }
}

// --- a roster that is older than the source ---

// The rendezvous is blocked, so that the reader cannot know the next generation yet.
BOOST_AUTO_TEST_CASE(a_restore_that_meets_a_withdrawn_generation_plans_again) {
  Job job;
  std::optional<Blocked> hold(job.host);
  job.source.retire();
  job.source.publish(2, 2);
  Restore restore = job.reader.restore(job.target.catalog, within(patience));  // read without a lease, as before
  Catalog other(Rank{0}, 1);
  TestShard rows(spec, Layout::boxes({{Rank{0}, {{{3, 0}, {9, 16}}}}}), Rank{0});
  rows.add_to(other);
  Restore leased = job.reader.restore(other, within(patience));
  job.source.wait_for_refusal();
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

  std::optional<Blocked> hold(job.host);
  job.source.retire();
  const Publication again = job.source.session->publish(published, {.step = 2});
  Restore restore = job.reader.restore(catalog, within(patience));
  while (!restore.poll() && !job.found_stale) std::this_thread::sleep_for(1ms);
  hold.reset();
  restore.wait();
  BOOST_TEST(job.found_stale);
  BOOST_TEST(wanted.wrong(2) == 0U);
}

BOOST_AUTO_TEST_CASE(a_shape_that_nothing_takes_the_place_of_is_withdrawn_at_the_deadline) {
  Job job;
  const Blocked hold(job.host);
  job.source.retire();
  TestShard wanted({spec.key, spec.dtype, {96, 16}}, Layout::replicated(), Rank{0});
  Catalog catalog(Rank{0}, 1);
  wanted.add_to(catalog);
  const Error error = failure_by(
      2s, [&](Duration timeout) { job.reader.restore(catalog, within(timeout)).wait(); },
      with_code(ErrorCode::withdrawn));
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
}

// It is asked whether it still publishes the shape, and cannot answer.
BOOST_AUTO_TEST_CASE(a_mismatch_with_a_source_that_hangs_is_final_after_the_notice) {
  Job job;
  const Blocked hangs(*job.source.session);
  TestShard wanted({spec.key, spec.dtype, {96, 16}}, Layout::replicated(), Rank{0});
  Catalog catalog(Rank{0}, 1);
  wanted.add_to(catalog);
  RestoreOptions options = within(patience);
  options.notice = 50ms;
  const Error error = failure_of([&] { job.reader.restore(catalog, options).wait(); });
  BOOST_TEST((error.code() == ErrorCode::layout_mismatch));
}

BOOST_AUTO_TEST_CASE(a_step_that_is_not_published_any_more_is_a_step_mismatch) {
  Job job;
  std::optional<Blocked> hold(job.host);
  job.source.retire();
  job.source.publish(2, 2);
  const auto began = WallClock::now();
  Restore restore = job.reader.restore(job.target.catalog, at_step(1, 60s));
  job.source.wait_for_refusal();
  hold.reset();
  const Error error = failure_of([&] { restore.wait(); });
  BOOST_TEST((WallClock::now() - began < 30s));
  BOOST_TEST((error.code() == ErrorCode::step_mismatch));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(says(error, "'state' is published at step 2 by source rank 0, and step 1 is wanted"));
}

BOOST_AUTO_TEST_CASE(a_generation_that_nothing_takes_the_place_of_is_withdrawn_at_the_deadline) {
  Job job;
  const Blocked hold(job.host);
  job.source.retire();
  const Error error = failure_by(
      500ms, [&](Duration timeout) { job.reader.restore(job.target.catalog, within(timeout)).wait(); },
      with_code(ErrorCode::withdrawn));
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST(error.retryable());
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
}

BOOST_AUTO_TEST_CASE(a_generation_that_others_cannot_take_the_place_of_is_withdrawn_too) {
  Halves job;
  job.first.publish(1, 1);
  job.second.publish(1, 1);
  Target target;
  job.reader.restore(target.catalog, within(patience)).wait();
  const Blocked hold(job.host);
  job.second.retire();
  const Error error = failure_by(
      1s, [&](Duration timeout) { job.reader.restore(target.catalog, within(timeout)).wait(); },
      with_code(ErrorCode::withdrawn));
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::withdrawn));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST_REQUIRE(error.gaps().size() == 1U);
  BOOST_TEST((error.gaps().front().box == Box{{32, 0}, {32, 16}}));
}

BOOST_AUTO_TEST_CASE(a_restore_that_waits_for_another_generation_can_be_cancelled) {
  Job job;
  const Blocked hold(job.host);
  job.source.retire();
  Restore restore = job.reader.restore(job.target.catalog, within(patience));
  std::this_thread::sleep_for(50ms);
  restore.cancel();
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
}

// --- messages ---

BOOST_AUTO_TEST_CASE(another_step_than_the_published_one_is_said_to_be_so) {
  Halves job;
  job.first.publish(1, 10);
  job.second.publish(1, 10);
  Target target;
  const Error later = failure_by(
      500ms, [&](Duration timeout) { job.reader.restore(target.catalog, at_step(11, timeout)).wait(); },
      [](const Error& error) { return error.ranks().size() == 2; });
  BOOST_TEST((later.code() == ErrorCode::step_mismatch));
  BOOST_TEST(says(later, "'state' is published at step 10 by source ranks 0, 1, and step 11 is wanted"));
  BOOST_TEST((later.ranks() == std::vector{Rank{0}, Rank{1}}));
  const auto began = WallClock::now();
  const Error earlier = failure_of([&] { job.reader.restore(target.catalog, at_step(9, 60s)).wait(); });
  BOOST_TEST((WallClock::now() - began < 30s));  // steps of sources only increase
  BOOST_TEST((earlier.code() == ErrorCode::step_mismatch));
}

BOOST_AUTO_TEST_CASE(layouts_over_different_numbers_of_ranks_are_told_apart) {
  const auto port = free_port();
  Source first(0, 2, port, Layout::replicated(), 0, 1);
  Source second(1, 2, port, Layout::chunk(0, 4), 2, 4);
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
  Target warm;
  job.reader.restore(warm.catalog, within(patience)).wait();
  TestShard rows(spec, Layout::boxes({{Rank{0}, {{{3, 0}, {50, 16}}}}}), Rank{0});
  Catalog catalog(Rank{0}, 1);
  rows.add_to(catalog);
  const Blocked hangs(*job.second.session);
  const Error error = failure_by(
      1s, [&](Duration timeout) { job.reader.restore(catalog, within(timeout)).wait(); },
      [](const Error& one) { return says(one, "waiting for an answer") && one.ranks() == std::vector{Rank{1}}; });
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{1}}));
  BOOST_TEST(says(error, "waiting for an answer from source rank 1 (127.0.0.1:"));
}

BOOST_AUTO_TEST_CASE(a_time_out_before_anything_is_published_names_who_could_have) {
  Halves job;
  job.other->close(10s);
  wait_until_lost(job.reader, 3);
  Target target;
  const Error nothing = failure_by(
      200ms, [&](Duration timeout) { job.reader.restore(target.catalog, within(timeout)).wait(); },
      [](const Error& error) { return error.ranks().size() == 3; });
  BOOST_TEST((nothing.code() == ErrorCode::timed_out));
  BOOST_TEST((nothing.ranks() == std::vector{Rank{0}, Rank{1}, Rank{2}}));
  BOOST_TEST(says(nothing, "no member publishes 'state', member 3 has left; members 0..2 could have"));
}

BOOST_AUTO_TEST_CASE(a_time_out_after_the_publishers_are_lost_names_them_and_no_boxes) {
  Halves job;
  job.first.publish(1, 1);
  job.first.die();
  wait_until_lost(job.reader, 1);
  Target target;
  const Error error = failure_by(
      200ms, [&](Duration timeout) { job.reader.restore(target.catalog, within(timeout)).wait(); },
      [](const Error& one) { return one.ranks().size() == 3; });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}, Rank{2}, Rank{3}}));
  BOOST_TEST(error.gaps().empty());
  BOOST_TEST(says(error, "no member publishes 'state', member 1 is lost; members 0, 2, 3 could have"), error.what());
}

BOOST_AUTO_TEST_SUITE_END()
