// SPDX-License-Identifier: Apache-2.0
// How callers wait for operations: for a time, by a descriptor or a callback, and until they are interrupted.
#include <poll.h>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(waits)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr auto ages = 1h;  // no test waits for it

bool is_readable(int descriptor, std::chrono::milliseconds within) {
  pollfd one{descriptor, POLLIN, 0};
  return ::poll(&one, 1, static_cast<int>(within.count())) == 1;
}

struct Signal : std::runtime_error {
  Signal() : std::runtime_error("a signal came") {}
};

/// Options of a session whose waits end as soon as `raised` is true.
SessionOptions interruptible(const std::atomic<bool>& raised) {
  SessionOptions options = quick();
  options.join_timeout = ages;
  options.interrupted = [&raised]() -> bool {
    if (raised) throw Signal();
    return false;
  };
  return options;
}

Catalog catalog_of(TestShard& shard) {
  Catalog catalog(Rank{0}, 1);
  shard.add_to(catalog);
  return catalog;
}

RestoreOptions patient() {
  RestoreOptions options;
  options.timeout = ages;
  return options;
}

// Member 0 publishes 4 MiB; member 1 reads them, if told so at a rate that takes long.
struct Pair {
  Pair() {
    const auto port = free_port();
    source.emplace(Session::join(member(0, 2, port), interruptible(raised)));
    reader.emplace(Session::join(member(1, 2, port), interruptible(raised)));
    held.fill(1);
    publication = source->publish(catalog_of(held));
  }
  Restore start(ByteCount bytes_per_second = 0) {
    RestoreOptions options = patient();
    options.ingress_bytes_per_second = bytes_per_second;
    return reader->restore(catalog_of(wanted), options);
  }
  // Returns once the reader holds a lease, which lasts for minutes.
  Restore start_slowly() {
    Restore restore = start(1 << 10);
    const auto moving = std::make_shared<std::atomic<bool>>(false);  // owners: this call and the callback
    restore.on_progress([moving](const Progress& progress) { *moving = *moving || progress.done_bytes > 0; }, 5ms);
    while (!*moving) std::this_thread::sleep_for(1ms);
    return restore;
  }

  static TensorSpec spec() { return {{"w", "exp_avg"}, DType::f32, {1 << 20}}; }
  std::atomic<bool> raised = false;
  TestShard held{spec(), Layout::replicated(), Rank{0}};
  TestShard wanted{spec(), Layout::replicated(), Rank{0}};
  std::optional<Session> source;
  std::optional<Session> reader;
  Publication publication;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_restore_is_waited_for_in_slices) {
  Pair pair;
  Restore slow = pair.start_slowly();
  BOOST_TEST(!slow.wait_for(1ms));
  slow.cancel();
  BOOST_CHECK_EXCEPTION(while (!slow.wait_for(10ms)){}, Error,
                        [](const Error& error) { return error.code() == ErrorCode::cancelled; });
  Restore restore = pair.start();
  while (!restore.wait_for(10ms)) continue;
  BOOST_TEST(pair.wanted.wrong(1) == 0U);
}

BOOST_AUTO_TEST_CASE(a_descriptor_and_a_callback_tell_that_a_restore_has_ended) {
  Pair pair;
  Restore slow = pair.start_slowly();
  BOOST_TEST(!is_readable(slow.event_descriptor(), 0ms));
  std::promise<void> ended;
  slow.on_done([&] { ended.set_value(); });
  slow.cancel();
  BOOST_TEST(is_readable(slow.event_descriptor(), 60s));
  BOOST_TEST((ended.get_future().wait_for(60s) == std::future_status::ready));
  BOOST_TEST(slow.poll());
}

BOOST_AUTO_TEST_CASE(a_retirement_goes_on_beside_its_caller_and_ends_with_the_last_reader) {
  Pair pair;
  Restore slow = pair.start_slowly();
  Retirement retirement = pair.publication.start_retire(ages);
  BOOST_TEST(!retirement.poll());
  BOOST_TEST(!retirement.wait_for(1ms));
  BOOST_TEST(!is_readable(retirement.event_descriptor(), 0ms));
  slow.cancel();
  BOOST_TEST(is_readable(retirement.event_descriptor(), 60s));
  BOOST_CHECK_NO_THROW(retirement.wait());
  BOOST_CHECK_NO_THROW(pair.publication.retire(ages));
}

BOOST_AUTO_TEST_CASE(a_retirement_whose_time_is_up_names_the_reader) {
  Pair pair;
  Restore slow = pair.start_slowly();
  Retirement retirement = pair.publication.start_retire(1ms);
  const Error error = failure_of([&] { retirement.wait(); });
  BOOST_TEST((error.code() == ErrorCode::timed_out));
  BOOST_TEST((error.ranks() == std::vector<Rank>{Rank{1}}));
}

BOOST_AUTO_TEST_CASE(an_interrupted_wait_for_a_restore_leaves_it_running) {
  Pair pair;
  Restore restore = pair.start_slowly();
  pair.raised = true;
  BOOST_CHECK_THROW(restore.wait(), Signal);
  BOOST_TEST(!restore.poll());
}

BOOST_AUTO_TEST_CASE(an_interrupted_retirement_takes_the_memory_back_at_once) {
  Pair pair;
  Restore restore = pair.start_slowly();
  pair.raised = true;
  BOOST_CHECK_THROW(pair.publication.retire(ages), Signal);
  pair.raised = false;
  BOOST_CHECK_NO_THROW(pair.publication.retire(ages));
  BOOST_TEST(!restore.poll());  // it waits for a replacement
}

BOOST_AUTO_TEST_CASE(an_interrupted_close_closes_the_session) {
  Pair pair;
  Restore restore = pair.start_slowly();
  pair.raised = true;
  BOOST_CHECK_THROW(pair.source->close(ages), Signal);
  pair.raised = false;
  BOOST_TEST((failure_of([&] { pair.source->publish(catalog_of(pair.held)); }).code() == ErrorCode::invalid_argument));
}

BOOST_AUTO_TEST_CASE(a_gather_that_others_do_not_join_is_interrupted) {
  Pair pair;
  pair.raised = true;
  BOOST_CHECK_THROW(pair.reader->gather("alone", {}, ages), Signal);
}

BOOST_AUTO_TEST_CASE(a_barrier_that_is_interrupted_has_not_been_come_to) {
  Pair pair;
  pair.raised = true;
  BOOST_CHECK_THROW(pair.reader->barrier(ages), Signal);
  pair.raised = false;
  BOOST_TEST((failure_of([&] { pair.source->barrier(10ms); }).code() == ErrorCode::timed_out));
}

BOOST_AUTO_TEST_CASE(a_join_without_a_member_0_is_interrupted) {
  const std::atomic<bool> raised = true;
  BOOST_CHECK_THROW(Session::join(member(1, 2, free_port()), interruptible(raised)), Signal);
}

namespace {

// A store in which nobody puts anything.
class EmptyStore final : public KeyValueStore {
 public:
  void put(const std::string&, const Bytes&) override {}
  std::optional<Bytes> get(const std::string&, std::chrono::nanoseconds timeout) override {
    longest = std::max(longest, timeout);
    return std::nullopt;
  }
  std::chrono::nanoseconds longest{0};
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_join_asks_its_store_in_slices_if_it_can_be_interrupted) {
  const std::atomic<bool> raised = true;
  const auto store = std::make_shared<EmptyStore>();  // owners: this test and the bootstrap
  Bootstrap bootstrap = member(1, 2, 0);
  bootstrap.store = store;
  BOOST_CHECK_THROW(Session::join(bootstrap, interruptible(raised)), Signal);
  BOOST_TEST((store->longest <= 1s));
}

namespace {

/// Runs `body(session, member)` on each member of a job of two.
template <typename Body>
void on_pair(std::atomic<bool>& raised, Body body) {
  const auto port = free_port();
  std::latch over(2);
  on_members(2, [&](int rank) {
    Session session = Session::join(member(rank, 2, port), rank == 0 ? interruptible(raised) : quick());
    try {
      body(session, rank);
    } catch (...) {
      over.arrive_and_wait();
      throw;
    }
    over.arrive_and_wait();  // a member that leaves early is lost to the other
  });
}

TensorSpec small() {
  return {{"w", "exp_avg"}, DType::f32, {1 << 10}};
}

/// Shards of an exchange that swaps the halves of two members.
struct Swap {
  explicit Swap(int rank)
      : held(small(), Layout::chunk(0, 2), Rank{rank}), wanted(small(), Layout::replicated(), Rank{rank}), rank_(rank) {
    held.fill(7);
  }
  Catalog holds() { return with(held); }
  Catalog wants() { return with(wanted); }

  TestShard held;
  TestShard wanted;

 private:
  Catalog with(TestShard& shard) const {
    Catalog catalog(Rank{rank_}, 2);
    shard.add_to(catalog);
    return catalog;
  }
  int rank_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(exchanges_run_beside_their_callers) {
  std::atomic<bool> raised = false;
  on_pair(raised, [](Session& session, int rank) {
    for (int round = 0; round < 2; ++round) {
      Swap swap(rank);
      Exchange exchange = session.start_exchange(swap.holds(), swap.wants());
      std::promise<void> ended;
      exchange.on_done([&] { ended.set_value(); });
      require(is_readable(exchange.event_descriptor(), 60s), "the descriptor tells of the end");
      exchange.wait();
      ended.get_future().wait();
      require(exchange.poll() && exchange.wait_for(0s), "it has ended");
      require(swap.wanted.wrong(7) == 0, "every element came");
      require(exchange.result().report.needed_bytes == 4 << 10, "the report is there");
    }
  });
}

BOOST_AUTO_TEST_CASE(progress_of_an_exchange_reaches_what_the_member_wants) {
  std::atomic<bool> raised = false;
  on_pair(raised, [](Session& session, int rank) {
    Swap swap(rank);
    std::atomic<ByteCount> done = 0;
    Exchange exchange = session.start_exchange(swap.holds(), swap.wants());
    exchange.on_progress([&](const Progress& progress) { done = progress.done_bytes; }, 1ms);
    exchange.wait();
    exchange.on_progress(nullptr);
    if (done != 0) require(done == 4 << 10, "the last call has the total");
  });
}

BOOST_AUTO_TEST_CASE(one_exchange_is_started_at_a_time) {
  std::atomic<bool> raised = false;
  const auto port = free_port();
  Session session = Session::join(member(0, 2, port), interruptible(raised));
  Swap swap(0);
  Exchange alone = session.start_exchange(swap.holds(), swap.wants());
  const Error error = failure_of([&] { session.start_exchange(swap.holds(), swap.wants()); });
  BOOST_TEST((error.code() == ErrorCode::invalid_argument));
  alone.cancel();
  BOOST_TEST((failure_of([&] { alone.wait(); }).code() == ErrorCode::cancelled));
}

// Member 0 leaves the exchange before member 1 comes to it, and member 1 learns of that.
BOOST_AUTO_TEST_CASE(a_cancelled_exchange_ends_on_every_member) {
  std::atomic<bool> raised = false;
  std::latch ended(1);
  on_pair(raised, [&](Session& session, int rank) {
    Swap swap(rank);
    if (rank == 1) ended.wait();
    Exchange exchange = session.start_exchange(swap.holds(), swap.wants());
    if (rank == 0) exchange.cancel();
    const Error error = failure_of([&] { exchange.wait(); });
    if (rank == 0) ended.count_down();
    require(error.code() == ErrorCode::cancelled, error.what());
  });
}

BOOST_AUTO_TEST_CASE(an_interrupted_exchange_ends_on_every_member) {
  std::atomic<bool> raised = true;
  std::latch ended(1);
  on_pair(raised, [&](Session& session, int rank) {
    Swap swap(rank);
    if (rank == 0) {
      try {
        session.exchange(swap.holds(), swap.wants());
      } catch (const Signal&) {
        return ended.count_down();
      }
      ended.count_down();
      throw std::runtime_error("it was not interrupted");
    }
    ended.wait();
    const Error error = failure_of([&] { session.exchange(swap.holds(), swap.wants()); });
    require(error.code() == ErrorCode::cancelled, error.what());
    require(says(error, "a signal came"), error.what());
  });
}

BOOST_AUTO_TEST_SUITE_END()
