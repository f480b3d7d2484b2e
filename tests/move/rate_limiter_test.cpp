// SPDX-License-Identifier: Apache-2.0
// The rate limiter against a fake clock: the machine's speed does not affect the tests.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <random>
#include <vector>

#include "move/rate_limiter.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(rate_limiter)

using namespace shardwire;
using namespace std::chrono_literals;
using WallClock = move::RateLimiter::WallClock;
using Seconds = std::chrono::duration<double>;

namespace {

struct Post {
  WallClock::time_point at;
  ByteCount bytes;
};

constexpr ByteCount max_slice_bytes = 4u << 20;

double burst_bytes(ByteCount rate) {
  return Seconds(move::RateLimiter::saved).count() * static_cast<double>(rate);
}

// Posts slices of up to `slice` bytes until `total` are posted, as a restore does: it posts all that is allowed now,
// and then sleeps until retry_at(). It wakes `late()` after that time, rounded up to milliseconds like the loop's
// timers.
template <typename Late>
std::vector<Post> drive(move::RateLimiter& rate_limiter, WallClock::time_point& now, ByteCount total, ByteCount slice,
                        Late late) {
  std::vector<Post> posts;
  while (total > 0) {
    const ByteCount bytes = std::min(total, slice);
    if (rate_limiter.take(bytes, now)) {
      posts.push_back({now, bytes});
      total -= bytes;
      continue;
    }
    const auto wait = std::chrono::ceil<std::chrono::milliseconds>(*rate_limiter.retry_at() - now);
    BOOST_REQUIRE((wait > 0ms));
    now += wait + late();
  }
  return posts;
}

double average(const std::vector<Post>& posts, WallClock::time_point began) {
  double bytes = 0;
  for (const Post& post : posts) bytes += static_cast<double>(post.bytes);
  return bytes / Seconds(posts.back().at - began).count();
}

// The largest excess of the posts in any span over rate * span.
double worst_burst(const std::vector<Post>& posts, ByteCount rate) {
  double worst = 0;
  double excess = 0;  // of the worst span that ends at this post
  for (std::size_t i = 0; i < posts.size(); ++i) {
    const double earned = i == 0 ? 0 : Seconds(posts[i].at - posts[i - 1].at).count() * static_cast<double>(rate);
    excess = std::max(0.0, excess - earned) + static_cast<double>(posts[i].bytes);
    worst = std::max(worst, excess);
  }
  return worst;
}

const ByteCount rates[] = {1000, 100u << 10, 1u << 20, 50u << 20, 200u << 20, 1u << 30, ByteCount{16} << 30};

}  // namespace

BOOST_DATA_TEST_CASE(late_callers_reach_the_rate, boost::unit_test::data::make(rates), rate) {
  std::mt19937_64 random(test_seed() ^ rate);
  for (const auto latest : {0ms, 1ms, 3ms, 8ms}) {
    move::RateLimiter rate_limiter(rate);
    const WallClock::time_point began{1h};
    WallClock::time_point now = began;
    std::uniform_int_distribution<std::int64_t> nanoseconds(0, WallClock::duration(latest).count());
    const auto posts = drive(rate_limiter, now, rate * 5, rate_limiter.slice_bytes(max_slice_bytes),
                             [&] { return WallClock::duration(nanoseconds(random)); });
    BOOST_TEST_CONTEXT("callers late by up to " << latest.count() << " ms") {
      BOOST_TEST(average(posts, began) <= 1.0001 * static_cast<double>(rate));
      BOOST_TEST(average(posts, began) >= 0.95 * static_cast<double>(rate));
      BOOST_TEST(worst_burst(posts, rate) <=
                 1.0001 * burst_bytes(rate) + 2 * static_cast<double>(rate_limiter.slice_bytes(max_slice_bytes)));
    }
  }
}

BOOST_DATA_TEST_CASE(a_pause_is_not_followed_by_more_than_the_bucket, boost::unit_test::data::make(rates), rate) {
  move::RateLimiter rate_limiter(rate);
  WallClock::time_point now{1h};
  const ByteCount slice = rate_limiter.slice_bytes(max_slice_bytes);
  auto posts = drive(rate_limiter, now, rate, slice, [] { return 0ms; });
  now += 60s;
  const auto more = drive(rate_limiter, now, rate, slice, [] { return 0ms; });
  posts.insert(posts.end(), more.begin(), more.end());
  BOOST_TEST(worst_burst(posts, rate) <= 1.0001 * burst_bytes(rate) + 2 * static_cast<double>(slice));
}

BOOST_AUTO_TEST_CASE(the_first_bytes_are_paid_for_as_well) {
  move::RateLimiter rate_limiter(1000);
  const WallClock::time_point start{1h};
  BOOST_TEST(!rate_limiter.take(500, start));
  BOOST_TEST((rate_limiter.retry_at() == start + 500ms));
  BOOST_TEST(!rate_limiter.take(500, start + 499ms));
  BOOST_TEST(rate_limiter.take(500, start + 500ms));
  BOOST_TEST(!rate_limiter.retry_at());
  BOOST_TEST(!rate_limiter.take(1, start + 500ms));
}

BOOST_AUTO_TEST_CASE(time_lost_by_a_late_caller_is_made_up) {
  move::RateLimiter rate_limiter(1000);
  const WallClock::time_point start{1h};
  BOOST_TEST(!rate_limiter.take(100, start));
  BOOST_TEST(rate_limiter.take(100, start + 110ms));   // 10 ms late
  BOOST_TEST(!rate_limiter.take(100, start + 199ms));  // the next one is not due earlier
  BOOST_TEST(rate_limiter.take(100, start + 200ms));
}

BOOST_AUTO_TEST_CASE(the_earliest_of_several_refused_posts_is_tried_first) {
  move::RateLimiter rate_limiter(1000);
  const WallClock::time_point start{1h};
  BOOST_TEST(!rate_limiter.take(300, start));
  BOOST_TEST(!rate_limiter.take(100, start));
  BOOST_TEST(!rate_limiter.take(200, start));
  BOOST_TEST((rate_limiter.retry_at() == start + 100ms));
  // The retry time must not be in the past.
  BOOST_TEST(!rate_limiter.take(300, start + 150ms));
  BOOST_TEST((rate_limiter.retry_at() == start + 300ms));
}

BOOST_AUTO_TEST_CASE(a_post_larger_than_the_bucket_waits_for_its_turn) {
  move::RateLimiter rate_limiter(1);
  const WallClock::time_point start{1h};
  BOOST_TEST(!rate_limiter.take(8, start));
  BOOST_TEST(!rate_limiter.take(8, start + 7s));
  BOOST_TEST(rate_limiter.take(8, start + 8s));
  BOOST_TEST(!rate_limiter.take(std::uint64_t{1} << 60, start + 8s));  // no overflow
  BOOST_TEST((*rate_limiter.retry_at() > start + 8s));
}

BOOST_AUTO_TEST_CASE(slices_are_small_enough_to_be_smooth) {
  BOOST_TEST(move::RateLimiter(1u << 30).slice_bytes(max_slice_bytes) == max_slice_bytes);
  BOOST_TEST(move::RateLimiter(50u << 20).slice_bytes(max_slice_bytes) == (50u << 20) / 100);
  BOOST_TEST(move::RateLimiter(1000).slice_bytes(max_slice_bytes) == 4096U);
  BOOST_TEST(move::RateLimiter(1000).slice_bytes(64) == 64U);  // never more than a slot
}

BOOST_AUTO_TEST_CASE(no_rate_means_no_limit) {
  move::RateLimiter rate_limiter(0);
  for (int i = 0; i < 10; ++i) BOOST_TEST(rate_limiter.take(1ULL << 40, {}));
  BOOST_TEST(!rate_limiter.retry_at());
  BOOST_TEST(rate_limiter.slice_bytes(64) == 64U);
}

BOOST_AUTO_TEST_SUITE_END()
