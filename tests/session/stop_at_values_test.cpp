// SPDX-License-Identifier: Apache-2.0
// RestoreOptions::stop_at_values: the caller looks at values before a byte is written.
#include <boost/test/unit_test.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(stop_at_values)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

const TensorSpec weight{{"w", "exp_avg"}, DType::f32, {256, 64}};
const TensorKey rate{"w", "rate"};
const TensorKey step{"w", "step"};
constexpr std::uint64_t before = 4711;  // what the target holds until it is written

/// Member 0 publishes a tensor, a value and a tensor of one element; member 1 wants them.
struct Pair {
  Pair() {
    for (int rank = 0; rank < 2; ++rank) sessions.push_back(Session::join(member(rank, 2, port), quick()));
    wanted.fill(before);
    wanted.add_to(target);
    target.add_value(rate);
    target.add({step, DType::f32, {}}, Layout::replicated(), View{.data = &received});
  }
  Catalog held(std::int64_t value, std::uint64_t seed) {
    shard.fill(seed);
    number = static_cast<float>(value);
    Catalog catalog(Rank{0}, 1);
    shard.add_to(catalog);
    catalog.add_value(rate, value);
    catalog.add({step, DType::f32, {}}, Layout::replicated(), View{.data = &number});
    return catalog;
  }
  void publish(std::int64_t value, std::uint64_t seed) {
    publication = sessions[0].publish(held(value, seed), {.step = 1, .snapshot = Snapshot::copy});
  }
  void publish_again(std::int64_t value, std::uint64_t seed) {
    publication.update(held(value, seed), 1, Snapshot::copy, patience);
  }
  Restore restore(Duration timeout = patience) {
    RestoreOptions options = within(timeout);
    options.stop_at_values = true;
    return sessions[1].restore(target, options);
  }
  [[nodiscard]] bool untouched() { return wanted.wrong(before) == 0 && received == -1; }

  std::uint16_t port = free_port();
  std::vector<Session> sessions;
  TestShard shard{weight, Layout::replicated(), Rank{0}};
  float number = 0;
  Publication publication;
  TestShard wanted{weight, Layout::replicated(), Rank{0}};
  float received = -1;
  Catalog target{Rank{0}, 1};
};

}  // namespace

BOOST_AUTO_TEST_CASE(values_are_known_before_a_byte_is_written) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(7, 1);
  Restore restore = pair.restore();
  restore.wait_values();
  BOOST_TEST(restore.values_ready());
  BOOST_TEST((restore.value(rate) == Value(std::int64_t{7})));
  BOOST_TEST(restore.has_value(step));  // a tensor of one element is a value too
  BOOST_TEST(!restore.wait_for(200ms));
  BOOST_TEST(pair.untouched());
  pair.publication.retire(10s);  // nobody reads
  pair.publish(7, 1);
  restore.proceed();
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  BOOST_TEST(pair.received == 7);
  BOOST_TEST((restore.value(rate) == Value(std::int64_t{7})));
}

BOOST_AUTO_TEST_CASE(a_restore_that_is_to_proceed_does_not_stop) {
  const Deadline deadline(120s);
  Pair pair;
  Restore restore = pair.restore();
  BOOST_TEST(!restore.values_ready());
  restore.proceed();
  pair.publish(7, 1);
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
  restore.proceed();  // does nothing
}

BOOST_AUTO_TEST_CASE(without_the_option_values_come_at_the_end) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(7, 1);
  Restore restore = pair.sessions[1].restore(pair.target, within(patience));
  restore.wait_values();
  BOOST_TEST(restore.poll());
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
}

// The generation that the plan names is gone when the restore asks for a lease, so it plans again.
BOOST_AUTO_TEST_CASE(other_values_of_a_later_generation_are_not_taken) {
  const Deadline deadline(120s);
  for (const std::int64_t later : {8, 7}) {
    Pair pair;
    pair.publish(7, 1);
    Restore restore = pair.restore();
    restore.wait_values();
    pair.publish_again(later, 2);
    restore.proceed();
    if (later == 7) {
      restore.wait();
      BOOST_TEST(pair.wanted.wrong(2) == 0U);
      continue;
    }
    const Error error = failure_of([&] { restore.wait(); });
    BOOST_TEST((error.code() == ErrorCode::withdrawn));
    BOOST_TEST(says(error, "other values"));
    BOOST_TEST((restore.value(rate) == Value(std::int64_t{7})));
    BOOST_TEST(pair.untouched());
  }
}

BOOST_AUTO_TEST_CASE(a_restore_that_stands_ends_with_its_deadline_and_may_be_resumed) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(7, 1);
  Restore restore;
  const Error error = failure_by(
      1s,
      [&](Duration timeout) {
        restore = pair.restore(timeout);
        restore.wait();
      },
      [&](const Error&) { return restore.has_value(rate); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST(pair.untouched());
  BOOST_TEST((restore.value(rate) == Value(std::int64_t{7})));
  restore.resume(patience);
  restore.wait_values();
  BOOST_TEST(pair.untouched());
  restore.proceed();
  restore.wait();
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_restore_that_stands_can_be_cancelled_and_destroyed) {
  const Deadline deadline(120s);
  Pair pair;
  pair.publish(7, 1);
  {
    Restore restore = pair.restore();
    restore.wait_values();
    restore.cancel();
    BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::cancelled));
    restore.proceed();
  }
  {
    Restore restore = pair.restore();
    restore.wait_values();
  }
  BOOST_TEST(pair.untouched());
}

BOOST_AUTO_TEST_CASE(an_error_before_the_values_comes_out_of_both_waits) {
  const Deadline deadline(120s);
  Pair pair;
  Restore restore = pair.restore(100ms);
  BOOST_TEST((failure_of([&] { restore.wait_values(); }).code() == ErrorCode::timed_out));
  BOOST_TEST((failure_of([&] { restore.wait(); }).code() == ErrorCode::timed_out));
}

BOOST_AUTO_TEST_SUITE_END()
