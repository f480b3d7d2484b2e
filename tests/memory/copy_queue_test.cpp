// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/copy_queue.hpp"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <semaphore>
#include <stdexcept>
#include <thread>

BOOST_AUTO_TEST_SUITE(copy_queue)

using namespace shardwire;
using namespace shardwire::memory;
using namespace std::chrono_literals;

namespace {

/// Copies boxes of a dense array into an array with gaps.
class Bench {
 public:
  static constexpr Extent rows = 40;
  static constexpr Extent columns = 700;
  static constexpr std::size_t count = 4;

  Bench() : source(static_cast<std::size_t>(rows * columns)), target(2 * source.size()) {
    for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 % 255 + 1);
  }

  static Box box(std::size_t index) {
    constexpr Extent height = rows / Extent{count};
    return {{static_cast<Extent>(index) * height, 3}, {height, columns - 5}};
  }
  static PlacedBox held() { return {Box::whole({rows, columns}), 0, {columns, 1}}; }
  static PlacedBox wanted() { return {Box::whole({rows, columns}), 0, {2 * columns, 1}}; }

  CopyBatch batch(CopyWork work, bool at_once, Stores stores = Stores::cached) {
    auto copy = [this](std::size_t index) {
      called.push_back(index);
      thread = std::this_thread::get_id();
      return QueuedCopy{StridedCopy(box(index), held(), wanted(), 1), source.data(), target.data()};
    };
    return {.count = count, .copy = copy, .work = work, .stores = stores, .at_once = at_once};
  }
  void wait() {
    while (copier.pending() > 0) {
      BOOST_REQUIRE(woken.try_acquire_for(20s));
      queue.poll();
    }
  }
  [[nodiscard]] bool copied() const {
    for (std::size_t i = 0; i < count; ++i) {
      if (digest_box(box(i), held(), source.data(), 1) != digest_box(box(i), wanted(), target.data(), 1)) return false;
    }
    return true;
  }
  [[nodiscard]] bool digests_are_right(const std::vector<Digest128>& digests) const {
    if (digests.size() != count) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (digests[i] != digest_box(box(i), held(), source.data(), 1)) return false;
    }
    return true;
  }

  Bytes source;
  Bytes target;
  std::vector<std::size_t> called;
  std::thread::id thread;
  std::counting_semaphore<> woken{0};
  Copier copier{2, [this] { woken.release(); }};
  HostCopies queue{copier};
};

const std::vector<bool> both{false, true};

}  // namespace

BOOST_AUTO_TEST_CASE(a_batch_is_copied_away_from_the_thread_that_submits_it) {
  Bench bench;
  int ended = 0;
  bench.queue.submit(bench.batch(CopyWork::copy, false), [&](const CopyResult& result) {
    BOOST_TEST(!result.error);
    BOOST_TEST(result.digests.empty());
    ++ended;
  });
  BOOST_TEST(ended == 0);
  bench.wait();
  BOOST_TEST(ended == 1);
  BOOST_TEST(bench.copied());
  BOOST_TEST((bench.thread != std::this_thread::get_id()));
  BOOST_TEST(bench.called == (std::vector<std::size_t>{0, 1, 2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_is_not_worth_a_thread_switch_is_copied_at_once) {
  Bench bench;
  int ended = 0;
  bench.queue.submit(bench.batch(CopyWork::copy, true), [&](const CopyResult&) { ++ended; });
  BOOST_TEST(ended == 1);
  BOOST_TEST(bench.copied());
  BOOST_TEST(bench.copier.workers() == 0U);
  BOOST_TEST(bench.queue.poll() == 0U);
}

BOOST_DATA_TEST_CASE(digests_are_those_of_the_boxes, both* both, at_once, streaming) {
  for (const CopyWork work : {CopyWork::copy_and_digest, CopyWork::digest}) {
    Bench bench;
    std::vector<CopyResult> seen;
    const Stores stores = streaming ? Stores::streaming : Stores::cached;
    bench.queue.submit(bench.batch(work, at_once, stores),
                       [&seen](const CopyResult& result) { seen.push_back(result); });
    bench.wait();
    BOOST_REQUIRE(seen.size() == 1U);
    BOOST_TEST(!seen[0].error);
    BOOST_TEST(bench.digests_are_right(seen[0].digests));
    BOOST_TEST(seen[0].digest_seconds > 0);
    BOOST_TEST(bench.copied() == (work != CopyWork::digest));
  }
}

BOOST_DATA_TEST_CASE(what_goes_wrong_is_in_the_result, both, at_once) {
  Bench bench;
  int ended = 0;
  CopyBatch batch = bench.batch(CopyWork::copy_and_digest, at_once);
  batch.copy = [good = batch.copy](std::size_t index) {
    if (index == 2) throw std::runtime_error("no");
    return good(index);
  };
  bench.queue.submit(std::move(batch), [&](const CopyResult& result) {
    ++ended;
    BOOST_CHECK_THROW(std::rethrow_exception(result.error), std::runtime_error);
  });
  bench.wait();
  BOOST_TEST(ended == 1);
  BOOST_TEST(bench.called.size() == 2U);
}

BOOST_AUTO_TEST_CASE(what_a_batch_holds_lives_until_it_is_told_of) {
  Bench bench;
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = held;
  CopyBatch batch = bench.batch(CopyWork::copy, false);
  batch.copy = [held = std::move(held), good = batch.copy](std::size_t index) { return good(index); };
  bool alive = false;
  bench.queue.submit(std::move(batch), [&](const CopyResult&) { alive = !watched.expired(); });
  bench.wait();
  BOOST_TEST(alive);
  BOOST_TEST(watched.expired());
}

BOOST_AUTO_TEST_SUITE_END()
