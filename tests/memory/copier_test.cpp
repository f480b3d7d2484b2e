// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/copier.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <exception>
#include <functional>
#include <semaphore>
#include <stdexcept>
#include <thread>
#include <vector>

BOOST_AUTO_TEST_SUITE(copier)

using shardwire::memory::Copier;
using namespace std::chrono_literals;

namespace {

/// A session's use of `wake`: sleeps until there may be news.
class Waker {
 public:
  void wake() { wakeups_.release(); }
  /// Polls until `count` callbacks have run in all, or 20 s have passed.
  void poll(Copier& copier, unsigned count) {
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (count > 0) {
      BOOST_REQUIRE(wakeups_.try_acquire_until(deadline));
      const unsigned ran = copier.poll();
      BOOST_REQUIRE_LE(ran, count);
      count -= ran;
    }
  }

 private:
  std::counting_semaphore<> wakeups_{0};
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

BOOST_AUTO_TEST_CASE(a_done_may_submit) {
  Waker waker;
  Copier copier(2, [&] { waker.wake(); });
  unsigned chained = 0;
  std::function<void(std::exception_ptr)> again = [&](const std::exception_ptr&) {
    if (++chained < 50) copier.submit([] {}, again);
  };
  copier.submit([] {}, again);
  waker.poll(copier, 50);
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
  while (ran < 2) ran += copier.poll();
  BOOST_CHECK_EQUAL(ran, 2u);
}

BOOST_AUTO_TEST_CASE(without_workers_each_poll_runs_one_job) {
  unsigned wakeups = 0;
  Copier copier(0, [&] { ++wakeups; });
  std::vector<int> order;
  copier.submit([&] { order.push_back(1); }, [&](const auto&) { order.push_back(-1); });
  copier.submit([&] { throw std::runtime_error("no"); },
                [&](const auto& failure) { order.push_back(failure ? 2 : 3); });
  copier.submit([&] { order.push_back(4); }, nothing);
  BOOST_CHECK_EQUAL(wakeups, 3u);
  BOOST_CHECK_EQUAL(copier.pending(), 3u);
  BOOST_CHECK(order.empty());
  BOOST_CHECK_EQUAL(copier.poll(), 1u);
  BOOST_CHECK(order == (std::vector{1, -1}));
  BOOST_CHECK_EQUAL(copier.poll(), 1u);
  BOOST_CHECK(order == (std::vector{1, -1, 2}));
  BOOST_CHECK_EQUAL(copier.poll(), 1u);
  BOOST_CHECK(order == (std::vector{1, -1, 2, 4}));
  BOOST_CHECK_EQUAL(copier.poll(), 0u);
  BOOST_CHECK_EQUAL(copier.pending(), 0u);
  BOOST_CHECK_EQUAL(copier.workers(), 0u);
}

BOOST_AUTO_TEST_CASE(the_destructor_finishes_what_runs_and_drops_the_rest) {
  std::counting_semaphore<> running{0};
  std::atomic<int> begun = 0;
  std::atomic<int> finished = 0;
  std::atomic<bool> told = false;
  {
    Copier copier(1, [] {});
    for (int i = 0; i < 1000; ++i) {
      copier.submit(
          [&] {
            ++begun;
            running.release();
            std::this_thread::sleep_for(50ms);
            ++finished;
          },
          [&](const auto&) { told = true; });
    }
    running.acquire();
  }
  BOOST_CHECK_GE(begun, 1);
  BOOST_CHECK_LT(begun, 1000);
  BOOST_CHECK_EQUAL(finished, begun);
  BOOST_CHECK(!told);
}

BOOST_AUTO_TEST_CASE(workers_start_when_there_is_work) {
  Waker waker;
  Copier copier(4, [&] { waker.wake(); });
  BOOST_CHECK_EQUAL(copier.workers(), 0u);
  copier.submit([] {}, nothing);
  BOOST_CHECK_EQUAL(copier.workers(), 1u);
  waker.poll(copier, 1);
  std::counting_semaphore<> go{0};
  for (int i = 0; i < 9; ++i) copier.submit([&] { go.acquire(); }, nothing);
  BOOST_CHECK_EQUAL(copier.workers(), 4u);
  go.release(9);
  waker.poll(copier, 9);
}

BOOST_AUTO_TEST_SUITE_END()
