// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/device_copies.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstring>
#include <memory>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "memory/device_events.hpp"
#include "support/deadline.hpp"
#include "support/fake_device.hpp"

namespace device_copies {

using namespace shardwire;
using namespace shardwire::memory;
using namespace shardwire::test;
using namespace std::chrono_literals;

namespace {

constexpr Extent rows = 96;
constexpr Extent columns = 700;
constexpr ByteCount dense_bytes = rows * columns;
constexpr ByteCount bytes_with_gaps = 2 * dense_bytes;
constexpr ByteCount budget = 16 << 10;
constexpr int host = on_host;

Bytes pattern(ByteCount bytes) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = static_cast<std::byte>(i * 31 % 251 + 1);
  return result;
}

/// Memory on the host or on a device, with access to its content from outside.
class Somewhere {
 public:
  Somewhere(const UsedDevices& devices, int place, ByteCount bytes) : devices_(devices), place_(place), bytes_(bytes) {
    if (place == on_host) {
      ordinary_.resize(bytes);
      address_ = ordinary_.data();
    } else if (place == on_pinned_host) {
      pinned_ = devices->allocate_host(bytes);
      address_ = pinned_->address();
    } else {
      address_ = devices->take(place, bytes);
    }
    set(Bytes(bytes));
  }
  void set(const Bytes& content) {
    if (place_ < 0) {
      std::copy(content.begin(), content.end(), address_);
    } else {
      devices_->write(address_, content);
    }
  }
  [[nodiscard]] Bytes content() const {
    return place_ < 0 ? Bytes(address_, address_ + bytes_) : devices_->read(address_, bytes_);
  }
  [[nodiscard]] std::byte* address() const { return address_; }
  [[nodiscard]] int place() const { return place_; }

 private:
  const UsedDevices& devices_;
  int place_;
  ByteCount bytes_;
  Bytes ordinary_;
  std::unique_ptr<DeviceMemory> pinned_;
  std::byte* address_ = nullptr;
};

/// A queue, and the thread that polls it.
class Bench {
 public:
  explicit Bench(ByteCount pinned_budget_bytes = budget)
      : queue(
            copier, [this] { woken.release(); }, pinned_budget_bytes) {}

  void run(const CopyBatch& batch) {
    bool ended = false;
    queue.submit(batch, [&](const CopyResult& result) {
      ended = true;
      error = result.error;
      digests = result.digests;
    });
    BOOST_TEST(!ended);
    wait([&] { return ended; });
  }
  template <typename Over>
  void wait(Over over) {
    while (!over()) {
      BOOST_REQUIRE(woken.try_acquire_for(20s));
      queue.poll();
    }
  }
  [[nodiscard]] ErrorCode code() const {
    try {
      std::rethrow_exception(error);
    } catch (const Error& reason) {
      return reason.code();
    }
  }

  std::counting_semaphore<> woken{0};
  Copier copier{2, [this] { woken.release(); }};
  DeviceCopies queue;
  std::exception_ptr error;
  std::vector<Digest128> digests;
};

/// Rows of a dense array into an array with gaps, as several copies.
CopyBatch rows_into_gaps(const Somewhere& source, const Somewhere& target) {
  constexpr std::size_t count = 6;
  const auto copy = [&source, &target](std::size_t index) {
    constexpr Extent height = rows / Extent{count};
    const Box box{{static_cast<Extent>(index) * height, 3}, {height, columns - 5}};
    const Box all = Box::whole({rows, columns});
    return QueuedCopy{StridedCopy(box, {all, 0, {columns, 1}}, {all, 0, {2 * columns, 1}}, 1), source.address(),
                      target.address(), source.place(), target.place()};
  };
  return {.count = count, .copy = copy, .on_devices = true};
}

CopyBatch first_bytes(const Somewhere& source, const Somewhere& target, Extent bytes) {
  const auto copy = [&source, &target, bytes](std::size_t) {
    const Box all = Box::whole({bytes});
    return QueuedCopy{StridedCopy(all, packed(all), packed(all), 1), source.address(), target.address(), source.place(),
                      target.place()};
  };
  return {.count = 1, .copy = copy, .on_devices = true};
}

Bytes expected(const Bytes& dense) {
  Bytes result(bytes_with_gaps);
  for (Extent row = 0; row < rows; ++row) {
    const auto from = dense.begin() + row * columns + 3;
    std::copy(from, from + columns - 5, result.begin() + row * 2 * columns + 3);
  }
  return result;
}

/// Shared by all cases. Memory outlives the queue that copies into it, so it is declared first.
struct Devices {
  Deadline deadline{60s};
  UsedDevices devices;
};

const std::vector<int> places{host, on_pinned_host, 0, 1};

}  // namespace

}  // namespace device_copies

BOOST_FIXTURE_TEST_SUITE(device_copies, Devices)

BOOST_DATA_TEST_CASE(a_copy_between_any_two_places_moves_every_byte,
                     boost::unit_test::data::make(places) * boost::unit_test::data::make(places), from, to) {
  Somewhere source(devices, from, dense_bytes);
  Somewhere target(devices, to, bytes_with_gaps);
  Bench bench;
  const Bytes content = pattern(dense_bytes);
  source.set(content);
  bench.run(rows_into_gaps(source, target));
  BOOST_TEST(!bench.error);
  BOOST_TEST((target.content() == expected(content)));
  const bool slots = (from == host) != (to == host) && std::max(from, to) >= 0;
  BOOST_TEST(bench.queue.pinned_bytes() <= budget);
  BOOST_TEST((bench.queue.pinned_bytes() > 0) == slots);
}

BOOST_AUTO_TEST_CASE(one_batch_may_touch_all_of_them) {
  std::vector<Somewhere> sources;
  std::vector<Somewhere> targets;
  Bench bench;
  for (const int from : places) {
    for (const int to : places) {
      sources.emplace_back(devices, from, dense_bytes).set(pattern(dense_bytes));
      targets.emplace_back(devices, to, bytes_with_gaps);
    }
  }
  const auto copy = [&](std::size_t index) {
    const Box all = Box::whole({rows, columns});
    return QueuedCopy{StridedCopy(all, {all, 0, {columns, 1}}, {all, 0, {2 * columns, 1}}, 1), sources[index].address(),
                      targets[index].address(), sources[index].place(), targets[index].place()};
  };
  bench.run({.count = sources.size(), .copy = copy, .on_devices = true});
  BOOST_TEST(!bench.error);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Bytes content = targets[i].content();
    const Bytes dense = pattern(dense_bytes);
    for (Extent row = 0; row < rows; ++row) {
      const bool same = std::equal(dense.begin() + row * columns, dense.begin() + (row + 1) * columns,
                                   content.begin() + row * 2 * columns);
      BOOST_REQUIRE(same);
    }
  }
  BOOST_TEST(bench.queue.pinned_bytes() <= budget);
}

BOOST_DATA_TEST_CASE(what_another_device_cannot_access_goes_by_way_of_pinned_memory,
                     boost::unit_test::data::make({false, true}) * boost::unit_test::data::make({false, true}),
                     digested, isolated) {
  devices->refuse_peers(!isolated);
  devices->close_to_peers(isolated);
  Somewhere source(devices, 0, dense_bytes);
  Somewhere target(devices, 1, bytes_with_gaps);
  Somewhere back(devices, 0, dense_bytes);
  Bench bench;
  const Bytes content = pattern(dense_bytes);
  source.set(content);
  const auto isolated_or_not = [is_isolated = isolated](CopyBatch whole) {
    whole.copy = [copy = whole.copy, is_isolated](std::size_t index) {
      QueuedCopy one = copy(index);
      one.source_isolated = is_isolated && one.source_device >= 0;
      return one;
    };
    return whole;
  };
  CopyBatch batch = isolated_or_not(rows_into_gaps(source, target));
  if (digested) batch.work = CopyWork::copy_and_digest;
  bench.run(batch);
  BOOST_TEST(!bench.error);
  BOOST_TEST((target.content() == expected(content)));
  BOOST_TEST(bench.digests.size() == (digested ? batch.count : 0));
  BOOST_TEST(bench.queue.pinned_bytes() > 0U);
  BOOST_TEST(bench.queue.pinned_bytes() <= budget);
  bench.run(first_bytes(source, back, dense_bytes));  // no fault affects copies within the device
  BOOST_TEST((back.content() == content));

  // Each half may fail, and then frees its slot for others.
  devices->lose(1);
  bench.run(isolated_or_not(rows_into_gaps(source, target)));
  BOOST_REQUIRE(bench.error);
  BOOST_TEST((bench.code() == ErrorCode::transport_failed));
  Somewhere ordinary(devices, host, bytes_with_gaps);
  bench.run(rows_into_gaps(source, ordinary));
  BOOST_TEST(!bench.error);
  BOOST_TEST((ordinary.content() == expected(content)));
  bench.run(isolated_or_not(first_bytes(target, source, 100)));
  BOOST_REQUIRE(bench.error);
  BOOST_TEST((bench.code() == ErrorCode::transport_failed));
}

BOOST_AUTO_TEST_CASE(host_memory_does_not_pass_through_here) {
  Somewhere source(devices, host, dense_bytes);
  Somewhere target(devices, host, bytes_with_gaps);
  Bench bench;
  source.set(pattern(dense_bytes));
  CopyBatch batch = rows_into_gaps(source, target);
  batch.on_devices = false;
  batch.at_once = true;
  int ended = 0;
  bench.queue.submit(batch, [&](const CopyResult&) { ++ended; });
  BOOST_TEST(ended == 1);
  BOOST_TEST((target.content() == expected(pattern(dense_bytes))));
  BOOST_TEST(devices->streams() == 0);
}

BOOST_AUTO_TEST_CASE(a_run_longer_than_a_slot_goes_in_parts) {
  constexpr Extent bytes = 10 * budget + 3;
  Somewhere source(devices, host, bytes);
  Somewhere target(devices, 1, bytes);
  Bench bench;
  const Bytes content = pattern(bytes);
  source.set(content);
  const auto copy = [&](std::size_t) {
    const Box all = Box::whole({bytes});
    return QueuedCopy{StridedCopy(all, packed(all), packed(all), 1), source.address(), target.address(), host, 1};
  };
  bench.run({.count = 1, .copy = copy, .on_devices = true});
  BOOST_TEST(!bench.error);
  BOOST_TEST((target.content() == content));
  BOOST_TEST(devices->max_pinned_bytes() <= budget);
}

BOOST_AUTO_TEST_CASE(pinned_memory_that_is_refused_is_the_result_of_what_needs_it) {
  Somewhere ordinary(devices, host, dense_bytes);
  Somewhere source(devices, 0, dense_bytes);
  Somewhere target(devices, 0, bytes_with_gaps);
  Bench bench;
  devices->refuse_host_memory(true);
  bench.run(rows_into_gaps(ordinary, target));
  BOOST_TEST((bench.code() == ErrorCode::out_of_resources));
  bench.run(rows_into_gaps(source, target));
  BOOST_TEST(!bench.error);
  devices->refuse_host_memory(false);
  bench.run(rows_into_gaps(ordinary, target));
  BOOST_TEST(!bench.error);
}

BOOST_AUTO_TEST_CASE(pinned_memory_is_made_and_freed_on_other_threads) {
  std::unique_ptr<DeviceMemory> kept;
  {
    Bench bench;
    std::unique_ptr<DeviceMemory> made[2];
    for (auto& memory : made) {
      bench.queue.make_pinned(1000, [&](std::unique_ptr<DeviceMemory> fresh, const std::exception_ptr& error) {
        BOOST_TEST(!error);
        memory = std::move(fresh);
      });
      bench.wait([&] { return memory != nullptr; });
      BOOST_TEST(memory->bytes() == 1000U);
      std::memset(memory->address(), 1, 1000);
    }
    BOOST_TEST(devices->pinned_bytes() == 2000U);
    made[0].reset();
    while (devices->pinned_bytes() > 1000) std::this_thread::yield();
    BOOST_TEST((devices->pinned_freed_by() != std::this_thread::get_id()));
    kept = std::move(made[1]);
  }
  BOOST_TEST(devices->pinned_bytes() == 1000U);
  kept.reset();
  BOOST_TEST(devices->pinned_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(a_device_that_is_lost_takes_nothing_else_with_it) {
  Somewhere first(devices, 0, dense_bytes);
  Somewhere second(devices, 1, dense_bytes);
  Somewhere target(devices, host, bytes_with_gaps);
  Bench bench;
  second.set(pattern(dense_bytes));
  bench.run(rows_into_gaps(first, target));
  devices->lose(0);
  bench.run(rows_into_gaps(first, target));
  BOOST_TEST((bench.code() == ErrorCode::transport_failed));
  bench.run(rows_into_gaps(second, target));
  BOOST_TEST(!bench.error);
  BOOST_TEST((target.content() == expected(pattern(dense_bytes))));
}

BOOST_AUTO_TEST_CASE(memory_that_is_no_longer_there_is_a_result_too) {
  Somewhere source(devices, 0, dense_bytes);
  Somewhere target(devices, host, bytes_with_gaps);
  Bench bench;
  devices->give_back(source.address());
  bench.run(rows_into_gaps(source, target));
  BOOST_TEST((bench.code() == ErrorCode::transport_failed));
}

BOOST_AUTO_TEST_CASE(without_a_runtime_there_are_no_devices) {
  Somewhere source(devices, 0, dense_bytes);
  Somewhere target(devices, host, bytes_with_gaps);
  Bench bench;
  use_device_runtime(nullptr);
  bench.run(rows_into_gaps(source, target));
  BOOST_TEST((bench.code() == ErrorCode::unsupported));
}

BOOST_DATA_TEST_CASE(digests_are_those_of_the_bytes_wherever_they_are,
                     boost::unit_test::data::make(places) * boost::unit_test::data::make(places), from, to) {
  const Bytes content = pattern(dense_bytes);
  for (const CopyWork work : {CopyWork::copy_and_digest, CopyWork::digest}) {
    Somewhere source(devices, from, dense_bytes);
    Somewhere target(devices, to, bytes_with_gaps);
    Bench bench;
    source.set(content);
    CopyBatch batch = rows_into_gaps(source, target);
    batch.work = work;
    bench.run(batch);
    BOOST_TEST(!bench.error);
    BOOST_TEST((target.content() == (work == CopyWork::digest ? Bytes(bytes_with_gaps) : expected(content))));
    BOOST_REQUIRE(bench.digests.size() == batch.count);
    for (std::size_t i = 0; i < batch.count; ++i) {
      BOOST_TEST((bench.digests[i] == digest_runs(batch.copy(i).copy, content.data())));
    }
  }
}

BOOST_AUTO_TEST_CASE(what_ends_early_leaves_nothing_behind) {
  {
    Copier copier(1, [] {});
    DeviceCopies queue(
        copier, [] {}, budget);
    const Somewhere source(devices, host, dense_bytes);
    const Somewhere target(devices, 0, bytes_with_gaps);
    queue.submit(rows_into_gaps(source, target), [](const CopyResult&) { BOOST_TEST(false); });
    queue.stop();
  }
  BOOST_TEST(devices->pinned_bytes() == 0U);
  BOOST_TEST(devices->streams() == 0);
}

BOOST_AUTO_TEST_CASE(events_are_waited_for_beside_other_work) {
  void* const events[]{devices->make_event(), devices->make_event()};
  std::atomic<int> ready = 0;
  const std::vector<ReadyEvent> both{{events[0], 0}, {events[1], 1}};
  when_ready(LentEvents(both), [&](const std::optional<Error>& error) { ready = error ? -1 : 1; });
  devices->fire(events[0]);
  std::this_thread::sleep_for(10ms);
  BOOST_TEST(ready == 0);
  devices->fire(events[1]);
  wait_until_ready(both);
  while (ready == 0) std::this_thread::yield();
  BOOST_TEST(ready == 1);
  int nothing = 0;
  BOOST_CHECK_THROW(wait_until_ready(std::vector<ReadyEvent>{{&nothing, 0}}), Error);
}

BOOST_AUTO_TEST_CASE(a_wait_that_fails_halfway_holds_nobody_up) {
  void* const never = devices->make_event();
  int nothing = 0;
  bool ended = false;
  {
    Bench bench;
    const auto events = std::make_shared<LentEvents>(std::vector<ReadyEvent>{{never, 0}, {&nothing, 0}});
    bench.queue.when_ready(events, [&](const std::exception_ptr& error) {
      ended = true;
      bench.error = error;
    });
    bench.wait([&] { return ended; });
    BOOST_TEST((bench.code() == ErrorCode::invalid_argument));
  }
  devices->fire(never);
}

BOOST_AUTO_TEST_CASE(events_that_were_taken_back_are_not_used) {
  void* const event = devices->make_event();
  const auto lent = std::make_shared<LentEvents>(std::vector<ReadyEvent>{{event, 0}});
  bool ended = false;
  Bench bench;
  devices->hold_streams(true);
  bench.queue.when_ready(lent, [&](const std::exception_ptr& error) {
    ended = true;
    bench.error = error;
  });
  lent->take_back();
  devices->destroy(event);
  devices->hold_streams(false);
  bench.wait([&] { return ended; });
  BOOST_TEST(!bench.error);
  BOOST_TEST(devices->wrong_events() == 0);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_recorded_ends_nothing_else) {
  Somewhere source(devices, host, dense_bytes);
  Somewhere target(devices, 0, bytes_with_gaps);
  source.set(pattern(dense_bytes));
  Bench bench;
  bench.run(rows_into_gaps(source, target));
  target.set(Bytes(bytes_with_gaps));
  devices->hold_streams(true);  // no other stream can be opened
  int nothing = 0;
  void* const good = devices->make_event();
  const auto events = std::make_shared<LentEvents>(std::vector<ReadyEvent>{{good, 0}, {&nothing, 0}, {good, 1}});
  bool told = false;
  bench.queue.record(events, 0, [&](const std::exception_ptr& error) {
    told = true;
    BOOST_TEST(devices->await(good, 0s));
    BOOST_CHECK_EXCEPTION(std::rethrow_exception(error), Error,
                          [](const Error& why) { return why.code() == ErrorCode::invalid_argument; });
  });
  bench.run(rows_into_gaps(source, target));
  BOOST_TEST(!bench.error);
  BOOST_TEST((target.content() == expected(pattern(dense_bytes))));
  bench.wait([&] { return told; });
  devices->hold_streams(false);
}

// The half that another batch has copied on the host survives the failure of its stream.
BOOST_AUTO_TEST_CASE(a_stream_that_ends_takes_only_its_own_work_with_it) {
  Somewhere source(devices, host, dense_bytes);
  Somewhere target(devices, 0, dense_bytes);
  Somewhere other(devices, 0, dense_bytes);
  source.set(pattern(dense_bytes));
  Bench bench;
  bench.run(first_bytes(source, target, 1));
  bool ended = false;
  bench.queue.submit(first_bytes(source, target, 1000), [&](const CopyResult& result) {
    ended = true;
    BOOST_TEST(!result.error);
  });
  devices->refuse_calls(true);
  bool failed = false;
  bench.queue.submit(first_bytes(other, target, 1000), [&](const CopyResult& result) {
    failed = true;
    BOOST_TEST((result.error != nullptr));
  });
  devices->refuse_calls(false);
  bench.wait([&] { return ended && failed; });
}

BOOST_AUTO_TEST_CASE(a_batch_of_very_many_parts_may_fail) {
  constexpr Extent bytes = 100'000;
  constexpr ByteCount byte_per_part = 4;
  for (const bool lost : {false, true}) {
    const int device = lost ? 1 : 0;
    const Somewhere source(devices, device, bytes);
    const Somewhere target(devices, host, bytes);
    Bench bench(byte_per_part);
    bench.run(first_bytes(source, target, 1));
    BOOST_TEST(!bench.error);
    if (lost) {
      devices->lose(device);
    } else {
      devices->give_back(source.address());
    }
    bench.run(first_bytes(source, target, bytes));
    BOOST_TEST((bench.code() == ErrorCode::transport_failed));
  }
}

BOOST_AUTO_TEST_CASE(a_completion_that_throws_leaves_the_others) {
  Bench bench;
  CopyBatch nothing;
  nothing.on_devices = true;
  bench.queue.submit(nothing, [](const CopyResult&) { throw std::runtime_error("thrown on purpose"); });
  bool ended = false;
  bench.queue.submit(nothing, [&](const CopyResult&) { ended = true; });
  BOOST_CHECK_THROW(bench.queue.poll(), std::runtime_error);
  BOOST_TEST(bench.queue.poll() == 1U);
  BOOST_TEST(ended);
}

// Work queued before the failure may still write.
BOOST_AUTO_TEST_CASE(a_stream_that_cannot_say_when_it_is_done_is_gone_before_the_batch) {
  for (const auto& [from, to] : {std::pair{0, 0}, std::pair{0, host}, std::pair{host, 0}}) {
    Somewhere source(devices, from, dense_bytes);
    Somewhere target(devices, to, bytes_with_gaps);
    source.set(pattern(dense_bytes));
    Bench bench;
    const CopyBatch batch = rows_into_gaps(source, target);
    devices->refuse_calls(true);
    int under_way = -1;
    bool ended = false;
    bench.queue.submit(batch, [&](const CopyResult& result) {
      ended = true;
      under_way = devices->under_way();
      bench.error = result.error;
    });
    bench.wait([&] { return ended; });
    BOOST_TEST(under_way == 0);
    BOOST_TEST((bench.code() == ErrorCode::out_of_resources));
    devices->refuse_calls(false);
    bench.run(batch);
    BOOST_TEST(!bench.error);
    BOOST_TEST((target.content() == expected(pattern(dense_bytes))));
  }
}

BOOST_AUTO_TEST_SUITE_END()
