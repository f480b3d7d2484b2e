// SPDX-License-Identifier: Apache-2.0
// StepRule::newest_complete: sources at several steps, of which the newest may lack ranks.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(newest_complete)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec spec{{"w", "exp_avg"}, DType::f32, {64, 16}};

/// Members that each publish one rank of some layout at some step, and the last one, which reads. Values tell the step.
class Job {
 public:
  explicit Job(int publishers) : members_(publishers + 1) {
    for (int i = 0; i < members_; ++i) sessions_.push_back(Session::join(member(i, members_, port_), quick()));
  }
  /// Returns once the reader knows of it.
  void publish(int by, std::int64_t step, const Layout& layout, int rank, int ranks, const TensorSpec& of = spec) {
    TestShard& shard = shards_.emplace_back(of, layout, Rank{rank});
    shard.fill(static_cast<std::uint64_t>(step));
    Catalog held(Rank{rank}, ranks);
    shard.add_to(held);
    held.add_value({"", "step"}, step);
    publications_.push_back(sessions_[static_cast<std::size_t>(by)].publish(held, {.step = step}));
    const auto is_listed = [&] {
      const Inventory known = sessions_.back().inventory("state", step, patience);
      return std::ranges::any_of(known.publishers, [by](const auto& one) { return one.member == by; });
    };
    while (!is_listed()) std::this_thread::sleep_for(1ms);
  }
  Restore restore(const RestoreOptions& options) {
    catalog_.emplace(Rank{0}, 1);
    wanted_.fill(4711);
    wanted_.add_to(*catalog_);
    catalog_->add_value({"", "step"});
    return sessions_.back().restore(*catalog_, options);
  }
  [[nodiscard]] std::size_t wrong(std::int64_t step) { return wanted_.wrong(static_cast<std::uint64_t>(step)); }

 private:
  int members_;
  std::uint16_t port_ = free_port();
  std::vector<Session> sessions_;
  std::deque<TestShard> shards_;
  std::vector<Publication> publications_;
  TestShard wanted_{spec, Layout::replicated(), Rank{0}};
  std::optional<Catalog> catalog_;
};

RestoreOptions newest(Duration timeout, Duration grace = 50ms) {
  RestoreOptions options = within(timeout);
  options.discovery_grace = grace;
  options.step_rule = StepRule::newest_complete;
  return options;
}

const Layout halves = Layout::chunk(0, 2);
const Layout thirds = Layout::chunk(0, 3);

}  // namespace

BOOST_AUTO_TEST_CASE(a_newer_step_that_lacks_a_rank_is_passed_over_and_named) {
  const Deadline deadline(120s);
  Job job(3);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  job.publish(2, 6, halves, 0, 2);
  Restore restore = job.restore(newest(patience));
  restore.wait();
  BOOST_TEST(job.wrong(5) == 0U);
  BOOST_TEST((restore.value({"", "step"}) == Value(std::int64_t{5})));
  const RestoreReport& report = restore.report();
  BOOST_TEST(report.step.value() == 5);
  BOOST_TEST_REQUIRE(report.incomplete_steps.size() == 1U);
  BOOST_TEST(report.incomplete_steps[0].step == 6);
  BOOST_TEST((report.incomplete_steps[0].gaps == std::vector<Gap>{{"w", "exp_avg", Box{{32, 0}, {32, 16}}, Rank{0}}}));
}

BOOST_AUTO_TEST_CASE(steps_may_have_layouts_over_different_numbers_of_ranks) {
  const Deadline deadline(120s);
  Job job(5);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  for (int rank = 0; rank < 3; ++rank) job.publish(2 + rank, 7, thirds, rank, 3);
  Restore restore = job.restore(newest(patience));
  restore.wait();
  BOOST_TEST(job.wrong(7) == 0U);
  BOOST_TEST(restore.report().step.value() == 7);
  BOOST_TEST(restore.report().incomplete_steps.empty());
}

BOOST_AUTO_TEST_CASE(an_older_layout_serves_where_the_newer_one_has_gaps) {
  const Deadline deadline(120s);
  Job job(4);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  job.publish(2, 7, thirds, 0, 3);
  job.publish(3, 7, thirds, 2, 3);
  Restore restore = job.restore(newest(patience));
  restore.wait();
  BOOST_TEST(job.wrong(5) == 0U);
  BOOST_TEST_REQUIRE(restore.report().incomplete_steps.size() == 1U);
  BOOST_TEST((restore.report().incomplete_steps[0].gaps.front().box == Box{{22, 0}, {22, 16}}));
}

// Of all wanted elements, not of all ranks.
BOOST_AUTO_TEST_CASE(a_step_that_lacks_a_rank_is_complete_if_others_hold_the_same) {
  const Deadline deadline(120s);
  Job job(2);
  job.publish(0, 5, Layout::replicated(), 0, 2);
  job.publish(1, 6, Layout::replicated(), 1, 2);
  Restore restore = job.restore(newest(patience));
  restore.wait();
  BOOST_TEST(job.wrong(6) == 0U);
}

BOOST_AUTO_TEST_CASE(a_rank_that_publishes_the_newest_step_within_the_grace_completes_it) {
  const Deadline deadline(240s);
  Job job(4);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  job.publish(2, 6, halves, 0, 2);
  Restore restore = job.restore(newest(patience, patience));
  std::this_thread::sleep_for(50ms);
  BOOST_TEST(!restore.poll());
  job.publish(3, 6, halves, 1, 2);
  restore.wait();
  BOOST_TEST(job.wrong(6) == 0U);
  BOOST_TEST(restore.report().incomplete_steps.empty());
}

BOOST_AUTO_TEST_CASE(an_older_step_that_does_not_fit_is_no_reason_to_give_up) {
  const Deadline deadline(240s);
  Job job(4);
  job.publish(0, 5, Layout::replicated(), 0, 1, {{"w", "exp_avg"}, DType::f32, {32, 16}});
  job.publish(1, 6, halves, 0, 2);
  Restore restore = job.restore(newest(patience));
  std::this_thread::sleep_for(300ms);
  BOOST_TEST(!restore.poll());
  job.publish(2, 6, halves, 1, 2);
  restore.wait();
  BOOST_TEST(job.wrong(6) == 0U);
}

BOOST_AUTO_TEST_CASE(ranks_that_are_missing_are_those_of_the_newest_step) {
  const Deadline deadline(120s);
  Job job(3);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 7, thirds, 0, 3);
  job.publish(2, 7, thirds, 1, 3);
  const Error error = failure_by(
      1s, [&](Duration timeout) { job.restore(newest(timeout)).wait(); },
      [](const Error& one) { return !one.gaps().empty(); });  // of a plan
  BOOST_TEST((error.ranks() == std::vector{Rank{2}}), error.what());
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{44, 0}, {20, 16}}, Rank{0}}}));
}

BOOST_AUTO_TEST_CASE(without_a_complete_step_the_newest_ones_gaps_are_named) {
  const Deadline deadline(120s);
  Job job(2);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 6, halves, 1, 2);
  const Error error = failure_by(
      1s, [&](Duration timeout) { job.restore(newest(timeout)).wait(); },
      [](const Error& one) { return !one.gaps().empty(); });  // of a plan
  BOOST_TEST_MESSAGE(error.what());
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.gaps() == std::vector<Gap>{{"w", "exp_avg", Box{{0, 0}, {32, 16}}, Rank{0}}}));
  BOOST_TEST((error.ranks() == std::vector{Rank{0}}));
  BOOST_TEST(says(error, "no step is complete: step 6: "));
  BOOST_TEST(says(error, "; step 5: 1 box without a holder"));
}

// The other rule refuses what this one is for.
BOOST_AUTO_TEST_CASE(without_the_rule_layouts_of_two_steps_are_refused) {
  const Deadline deadline(120s);
  Job job(3);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  job.publish(2, 6, thirds, 2, 3);
  BOOST_CHECK_THROW(job.restore(within(1s)).wait(), Error);
}

BOOST_AUTO_TEST_CASE(a_step_that_was_asked_for_is_the_only_one) {
  const Deadline deadline(120s);
  Job job(3);
  job.publish(0, 5, halves, 0, 2);
  job.publish(1, 5, halves, 1, 2);
  job.publish(2, 6, Layout::replicated(), 0, 1);
  RestoreOptions options = newest(patience);
  options.step = 5;
  Restore restore = job.restore(options);
  restore.wait();
  BOOST_TEST(job.wrong(5) == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
