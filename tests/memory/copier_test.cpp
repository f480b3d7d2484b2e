// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/copier.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <memory>
#include <semaphore>
#include <stdexcept>
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

BOOST_AUTO_TEST_CASE(without_workers_each_poll_runs_one_job) {
  unsigned wakeups = 0;
  Copier copier(0, [&] { ++wakeups; });
  std::vector<int> order;
  const auto first = copier.submit([&] { order.push_back(1); }, [&](const auto&) { order.push_back(-1); });
  copier.submit([&] { throw std::runtime_error("no"); },
                [&](const auto& failure) { order.push_back(failure ? 2 : 3); });
  copier.submit([&] { order.push_back(4); }, nothing);
  BOOST_CHECK_EQUAL(wakeups, 3u);
  BOOST_CHECK(order.empty());
  BOOST_CHECK(copier.cancel(first));
  BOOST_CHECK_EQUAL(copier.poll(), 1u);
  BOOST_CHECK(order == (std::vector{2}));
  BOOST_CHECK_EQUAL(copier.poll(), 1u);
  BOOST_CHECK(order == (std::vector{2, 4}));
  BOOST_CHECK_EQUAL(copier.poll(), 0u);
  BOOST_CHECK_EQUAL(copier.pending(), 0u);
  BOOST_CHECK_EQUAL(copier.workers(), 0u);
}

BOOST_AUTO_TEST_CASE(without_workers_jobs_and_parts_alternate) {
  unsigned wakeups = 0;
  Copier copier(0, [&] { ++wakeups; });
  std::vector<std::size_t> order;
  const auto shared = copier.submit_shared(
      3, 4, [&](std::size_t part) { order.push_back(part); }, [&](const auto&) { order.push_back(9); });
  copier.submit([&] { order.push_back(7); }, nothing);
  unsigned polls = 0;
  while (wakeups > 0) {  // no poll is needed that was not announced
    --wakeups;
    (void)copier.poll();
    ++polls;
  }
  BOOST_CHECK_GE(polls, 2u);
  BOOST_CHECK(order == (std::vector<std::size_t>{7, 0, 1, 2, 9}));
  BOOST_CHECK_EQUAL(shared->finished(), 3u);
  BOOST_CHECK_EQUAL(copier.pending(), 0u);
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

BOOST_AUTO_TEST_CASE(a_shared_job_runs_every_part_once_and_wakes_once) {
  for (const unsigned threads : {1u, 2u, 4u}) {
    for (const unsigned width : {0u, 1u, 2u, 9u}) {
      Waker waker;
      std::atomic<int> wakes = 0;
      Copier copier(threads, [&] {
        ++wakes;
        waker.wake();
      });
      constexpr std::size_t parts = 500;
      std::vector<int> ran(parts, 0);  // plain ints: poll() must order the parts before done
      unsigned done = 0;
      const auto job = copier.submit_shared(
          parts, width, [&](std::size_t index) { ++ran[index]; },
          [&, caller = std::this_thread::get_id()](const std::exception_ptr& failure) {
            BOOST_CHECK(!failure);
            BOOST_CHECK(std::this_thread::get_id() == caller);
            ++done;
          });
      BOOST_CHECK_EQUAL(copier.pending(), 1u);
      waker.poll(copier, 1);
      BOOST_CHECK_EQUAL(done, 1u);
      BOOST_CHECK_EQUAL(wakes, 1);
      BOOST_CHECK_EQUAL(job->finished(), parts);
      BOOST_CHECK(ran == std::vector<int>(parts, 1));
      BOOST_CHECK_EQUAL(copier.pending(), 0u);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_shared_job_without_parts_is_done_as_well) {
  Waker waker;
  Copier copier(2, [&] { waker.wake(); });
  bool done = false;
  copier.submit_shared(
      0, 2, [](std::size_t) { BOOST_ERROR("there is none"); }, [&](const auto& failure) { done = !failure; });
  waker.poll(copier, 1);
  BOOST_CHECK(done);
}

BOOST_AUTO_TEST_CASE(a_shared_job_has_as_many_workers_as_its_width_and_no_more) {
  Waker waker;
  Copier copier(4, [&] { waker.wake(); });
  std::atomic<int> at_once = 0;
  std::atomic<int> most = 0;
  std::counting_semaphore<> begun{0};
  std::counting_semaphore<> go{0};
  copier.submit_shared(
      12, 3,
      [&](std::size_t) {
        const int now = ++at_once;
        int seen = most;
        while (seen < now && !most.compare_exchange_weak(seen, now)) {
        }
        begun.release();
        go.acquire();
        --at_once;
      },
      nothing);
  for (int i = 0; i < 3; ++i) BOOST_REQUIRE(begun.try_acquire_for(20s));  // three parts at once
  BOOST_CHECK(!begun.try_acquire_for(20ms));
  go.release(12);
  waker.poll(copier, 1);
  BOOST_CHECK_EQUAL(most, 3);
}

BOOST_AUTO_TEST_CASE(the_first_exception_of_a_shared_job_stops_the_rest) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  std::size_t ran = 0;
  std::exception_ptr seen;
  const auto job = copier.submit_shared(
      10, 1,
      [&](std::size_t index) {
        ++ran;
        if (index == 3) throw std::runtime_error("torn");
      },
      [&](std::exception_ptr failure) { seen = failure; });
  waker.poll(copier, 1);
  BOOST_CHECK_THROW(std::rethrow_exception(seen), std::runtime_error);
  BOOST_CHECK_EQUAL(ran, 4u);
  BOOST_CHECK_EQUAL(job->finished(), 3u);
}

BOOST_AUTO_TEST_CASE(of_exceptions_at_the_same_time_one_is_reported) {
  Waker waker;
  Copier copier(4, [&] { waker.wake(); });
  for (int round = 0; round < 50; ++round) {
    unsigned done = 0;
    copier.submit_shared(
        100, 4, [](std::size_t) { throw std::runtime_error("torn"); },
        [&](const std::exception_ptr& failure) {
          BOOST_CHECK(failure);
          ++done;
        });
    waker.poll(copier, 1);
    BOOST_CHECK_EQUAL(done, 1u);
    BOOST_CHECK_EQUAL(copier.pending(), 0u);
  }
}

BOOST_AUTO_TEST_CASE(a_stopped_shared_job_finishes_the_parts_that_have_begun) {
  Waker waker;
  Copier copier(2, [&] { waker.wake(); });
  std::counting_semaphore<> begun{0};
  std::counting_semaphore<> go{0};
  std::atomic<unsigned> ran = 0;
  bool failed = true;
  const auto job = copier.submit_shared(
      100, 2,
      [&](std::size_t) {
        begun.release();
        go.acquire();
        ++ran;
      },
      [&](const std::exception_ptr& failure) { failed = failure != nullptr; });
  begun.acquire();
  begun.acquire();
  BOOST_CHECK_EQUAL(job->finished(), 0u);
  job->stop();
  BOOST_CHECK_EQUAL(copier.poll(), 0u);  // two parts still run
  go.release(2);
  waker.poll(copier, 1);
  BOOST_CHECK(!failed);
  BOOST_CHECK_EQUAL(ran, 2u);
  BOOST_CHECK_EQUAL(job->finished(), 2u);
}

BOOST_AUTO_TEST_CASE(a_shared_job_stopped_before_it_began_runs_no_part) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  std::binary_semaphore go{0};
  copier.submit([&] { go.acquire(); }, nothing);
  const auto job = copier.submit_shared(
      5, 1, [](std::size_t) { BOOST_ERROR("was stopped"); }, nothing);
  job->stop();
  go.release();
  waker.poll(copier, 2);
  BOOST_CHECK_EQUAL(job->finished(), 0u);
}

BOOST_AUTO_TEST_CASE(other_jobs_run_between_the_parts_of_a_shared_one) {
  Waker waker;
  Copier copier(1, [&] { waker.wake(); });
  std::binary_semaphore begun{0};
  std::binary_semaphore go{0};
  std::vector<int> order;  // one worker: no two at once
  copier.submit_shared(
      3, 1,
      [&](std::size_t index) {
        if (index == 0) {
          begun.release();
          go.acquire();
        }
        order.push_back(static_cast<int>(index));
      },
      nothing);
  begun.acquire();
  copier.submit([&] { order.push_back(10); }, nothing);
  copier.submit([&] { order.push_back(11); }, nothing);
  go.release();
  waker.poll(copier, 3);
  BOOST_CHECK((order == std::vector<int>{0, 10, 1, 11, 2}));
}

BOOST_AUTO_TEST_CASE(what_a_shared_job_holds_is_released_before_its_done) {
  Waker waker;
  Copier copier(2, [&] { waker.wake(); });
  auto held = std::make_shared<int>(1);  // owners: this case and the job
  long owners = 0;
  std::atomic<int> sum = 0;
  const auto job = copier.submit_shared(
      8, 2, [held, &sum](std::size_t) { sum += *held; },
      [&, weak = std::weak_ptr(held)](const auto&) { owners = weak.use_count(); });
  waker.poll(copier, 1);
  BOOST_CHECK_EQUAL(owners, 1);
  BOOST_CHECK_EQUAL(sum.load(), 8);
}

BOOST_AUTO_TEST_CASE(shared_and_other_jobs_mix_in_any_number) {
  Waker waker;
  Copier copier(3, [&] { waker.wake(); });
  std::atomic<unsigned> parts = 0;
  unsigned done = 0;
  for (unsigned i = 0; i < 40; ++i) {
    copier.submit_shared(
        i, i % 5, [&](std::size_t) { ++parts; }, [&](const auto&) { ++done; });
    copier.submit([&] { ++parts; }, [&](const auto&) { ++done; });
  }
  waker.poll(copier, 80);
  BOOST_CHECK_EQUAL(done, 80u);
  BOOST_CHECK_EQUAL(parts, 40u * 39u / 2 + 40);
}

BOOST_AUTO_TEST_CASE(the_destructor_finishes_the_parts_that_run_and_drops_the_rest) {
  std::counting_semaphore<> begun{0};
  std::atomic<int> finished = 0;
  std::atomic<bool> told = false;
  std::shared_ptr<Copier::SharedJob> job;  // outlives the copier
  {
    Copier copier(2, [] {});
    job = copier.submit_shared(
        1000, 2,
        [&](std::size_t) {
          begun.release();
          std::this_thread::sleep_for(50ms);
          ++finished;
        },
        [&](const auto&) { told = true; });
    copier.submit_shared(
        1000, 2, [&](std::size_t) { ++finished; }, [&](const auto&) { told = true; });
    begun.acquire();
    begun.acquire();
  }
  BOOST_CHECK_GE(finished, 2);
  BOOST_CHECK_LT(finished, 1000);
  BOOST_CHECK_EQUAL(job->finished(), static_cast<std::size_t>(finished));
  BOOST_CHECK(!told);
}

BOOST_AUTO_TEST_SUITE_END()
