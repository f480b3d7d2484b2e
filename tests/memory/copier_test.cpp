// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/copier.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <semaphore>
#include <stdexcept>

using shardwire::memory::Copier;
using namespace std::chrono_literals;

namespace {

/// What a session does with `wake`: sleeps until there may be news.
class Waker {
 public:
  void wake() { news_.release(); }
  /// Polls until `count` callbacks have run in all, or 20 s.
  void poll(Copier& copier, unsigned count) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (count > 0) {
      BOOST_REQUIRE(news_.try_acquire_until(deadline));
      const unsigned ran = copier.poll();
      BOOST_REQUIRE_LE(ran, count);
      count -= ran;
    }
  }

 private:
  std::counting_semaphore<> news_{0};
};

void nothing(const std::exception_ptr&) {
}

void check_every_job_runs_once(unsigned threads) {
  Waker waker;
  Copier copier(threads, [&] { waker.wake(); });
  constexpr unsigned jobs = 500;
  std::vector<int> ran(jobs, 0);  // plain ints: poll() must order the job before its done
  unsigned done = 0;
  for (unsigned i = 0; i < jobs; ++i) {
    copier.submit([&ran, i] { ++ran[i]; },
                  [&, i, caller = std::this_thread::get_id()](const std::exception_ptr& failure) {
                    BOOST_CHECK(!failure);
                    BOOST_CHECK(std::this_thread::get_id() == caller);
                    BOOST_CHECK_EQUAL(ran[i], 1);
                    ++done;
                  });
  }
  waker.poll(copier, jobs);
  BOOST_CHECK_EQUAL(done, jobs);
  BOOST_CHECK_EQUAL(copier.pending(), 0u);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(copier)

BOOST_AUTO_TEST_CASE(every_job_runs_once_and_is_reported_on_the_polling_thread) {
  for (const unsigned threads : {0u, 1u, 2u, 4u}) check_every_job_runs_once(threads);
}

BOOST_AUTO_TEST_CASE(what_a_job_throws_reaches_its_done) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  std::exception_ptr seen;
  copier.submit([] { throw std::runtime_error("torn"); }, [&](std::exception_ptr failure) { seen = failure; });
  waker.poll(copier, 1);
  BOOST_CHECK_THROW(std::rethrow_exception(seen), std::runtime_error);
}

BOOST_AUTO_TEST_CASE(only_a_job_that_has_not_begun_can_be_cancelled) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  std::binary_semaphore begun{0};
  std::binary_semaphore go{0};
  bool cancelled_ran = false;
  const auto first = copier.submit(
      [&] {
        begun.release();
        go.acquire();
      },
      nothing);
  const auto second = copier.submit([&] { cancelled_ran = true; }, [&](const auto&) { cancelled_ran = true; });
  const auto third = copier.submit([] {}, nothing);
  begun.acquire();
  BOOST_CHECK(!copier.cancel(first));
  BOOST_CHECK(copier.cancel(second));
  BOOST_CHECK(!copier.cancel(second));
  BOOST_CHECK(!copier.cancel(0));
  BOOST_CHECK(!copier.cancel(third + 1));
  BOOST_CHECK_EQUAL(copier.pending(), 2u);
  go.release();
  waker.poll(copier, 2);
  BOOST_CHECK(!cancelled_ran);
  BOOST_CHECK(!copier.cancel(third));
}

BOOST_AUTO_TEST_CASE(a_done_may_submit_and_cancel) {
  Waker waker;
  Copier copier(2, [&] { waker.wake(); });
  unsigned chained = 0;
  std::function<void(std::exception_ptr)> again = [&](const std::exception_ptr&) {
    if (++chained == 50) return;
    const auto extra = copier.submit([] { std::this_thread::sleep_for(1ms); }, nothing);
    copier.submit([] {}, again);
    (void)copier.cancel(extra);
  };
  copier.submit([] {}, again);
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (copier.pending() > 0 && std::chrono::steady_clock::now() < deadline) (void)copier.poll();
  BOOST_CHECK_EQUAL(chained, 50u);
}

BOOST_AUTO_TEST_CASE(a_done_that_throws_leaves_the_others_for_the_next_poll) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  copier.submit([] {}, [](const auto&) { throw std::runtime_error("no"); });
  copier.submit([] {}, nothing);
  std::binary_semaphore last{0};
  copier.submit([&] { last.release(); }, nothing);
  last.acquire();  // the first two have finished
  BOOST_CHECK_THROW(copier.poll(), std::runtime_error);
  unsigned ran = 0;
  while (copier.pending() > 0) ran += copier.poll();
  BOOST_CHECK_EQUAL(ran, 2u);
}

BOOST_AUTO_TEST_CASE(the_destructor_finishes_what_runs_and_drops_the_rest) {
  std::binary_semaphore begun{0};
  std::atomic<bool> finished = false;
  std::atomic<int> others = 0;
  {
    Copier copier(1, [] {});
    copier.submit(
        [&] {
          begun.release();
          std::this_thread::sleep_for(50ms);
          finished = true;
        },
        [&](const auto&) { ++others; });
    for (int i = 0; i < 100; ++i) copier.submit([&] { ++others; }, [&](const auto&) { ++others; });
    begun.acquire();
  }
  BOOST_CHECK(finished);
  BOOST_CHECK_EQUAL(others, 0);
}

BOOST_AUTO_TEST_SUITE_END()
