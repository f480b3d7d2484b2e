// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "memory/copy_queue.hpp"
#include "move/staging.hpp"
#include "shardwire/error.hpp"
#include "support/fake_device.hpp"

BOOST_AUTO_TEST_SUITE(staging)

using namespace shardwire;

BOOST_AUTO_TEST_CASE(a_pool_never_hands_out_more_than_its_budget) {
  move::StagingPool pool(1000, 300);
  std::vector<move::Slot> slots;
  while (move::Slot slot = pool.acquire()) slots.push_back(std::move(slot));
  BOOST_TEST(slots.size() == 3U);
  BOOST_TEST(pool.peak_bytes() == 900U);
  BOOST_TEST(pool.peak_bytes() <= pool.budget_bytes());
  slots.pop_back();
  BOOST_TEST(pool.free_slots() == 1U);
  BOOST_TEST(static_cast<bool>(pool.acquire()));
}

BOOST_AUTO_TEST_CASE(a_budget_below_one_slot_makes_one_small_slot) {
  move::StagingPool pool(10, 300);
  BOOST_TEST(pool.slot_bytes() == 10U);
  const move::Slot slot = pool.acquire();
  BOOST_TEST(slot.bytes().size() == 10U);
  BOOST_TEST(!pool.acquire());
}

BOOST_AUTO_TEST_CASE(slots_in_flight_do_not_share_memory) {
  move::StagingPool pool(64, 32);
  const move::Slot a = pool.acquire();
  const move::Slot b = pool.acquire();
  BOOST_TEST(a.bytes().data() != b.bytes().data());
}

BOOST_AUTO_TEST_CASE(a_slot_may_outlive_its_pool) {
  move::Slot slot;
  {
    move::StagingPool pool(64, 64);
    slot = pool.acquire();
  }
  slot.bytes()[0] = std::byte{1};
  BOOST_TEST((slot.bytes()[0] == std::byte{1}));
}

BOOST_AUTO_TEST_CASE(trimmed_slots_are_made_again) {
  move::StagingPool pool(128, 32);
  {
    const move::Slot slots[] = {pool.acquire(), pool.acquire(), pool.acquire(), pool.acquire()};
    BOOST_TEST(pool.peak_bytes() == 128U);
    pool.trim(0);  // none of them is free
    for (const move::Slot& slot : slots) slot.bytes()[31] = std::byte{1};
  }
  pool.trim(32);
  BOOST_TEST(pool.free_slots() == 4U);
  pool.forget_peak();
  BOOST_TEST(pool.peak_bytes() == 0U);
  const move::Slot slots[] = {pool.acquire(), pool.acquire(), pool.acquire(), pool.acquire()};
  for (const move::Slot& slot : slots) {
    BOOST_REQUIRE(slot.bytes().data() != nullptr);
    slot.bytes()[0] = slot.bytes()[31] = std::byte{2};
  }
  BOOST_TEST(pool.peak_bytes() == 128U);
}

// Allocates only in poll().
class SlowQueue final : public memory::CopyQueue {
 public:
  void submit(memory::CopyBatch, Done) override { BOOST_FAIL("there is nothing to be copied"); }
  void make_pinned(ByteCount bytes, memory::MadePinned done) override { wanted_.emplace_back(bytes, std::move(done)); }
  unsigned poll() override {
    unsigned ran = 0;
    for (auto& [bytes, done] : std::exchange(wanted_, {})) {
      std::unique_ptr<memory::DeviceMemory> made;
      std::exception_ptr error;
      try {
        made = memory::device_runtime().runtime->allocate_host(bytes);
      } catch (const Error&) {
        error = std::current_exception();
      }
      done(std::move(made), error);
      ++ran;
    }
    return ran;
  }

 private:
  std::vector<std::pair<ByteCount, memory::MadePinned>> wanted_;
};

struct Pinning {
  test::UsedDevices devices;
  SlowQueue queue;
  int made = 0;
  std::optional<ErrorCode> failure;

  move::Slot try_from(move::StagingPool& pool) {
    return pool.acquire_pinned(queue, [this](const std::exception_ptr& error) {
      ++made;
      try {
        if (error) std::rethrow_exception(error);
      } catch (const Error& why) {
        failure = why.code();
      }
    });
  }
  move::Slot from(move::StagingPool& pool) {
    move::Slot slot = try_from(pool);
    if (slot || queue.poll() == 0) return slot;
    return try_from(pool);
  }
};

BOOST_FIXTURE_TEST_CASE(pinned_slots_are_made_one_at_a_time_and_elsewhere, Pinning) {
  move::StagingPool pool(128, 32);
  BOOST_TEST(!try_from(pool));
  BOOST_TEST(!try_from(pool));
  BOOST_TEST(pool.free_slots() == 3U);  // the slot being allocated counts as taken
  BOOST_TEST(devices->pinned_bytes() == 0U);
  BOOST_TEST(queue.poll() == 1U);
  BOOST_TEST(made == 1);
  BOOST_TEST(pool.free_slots() == 4U);
  const move::Slot slot = try_from(pool);
  BOOST_REQUIRE(static_cast<bool>(slot));
  BOOST_TEST(slot.place() == memory::on_pinned_host);
  BOOST_TEST(devices->pinned_bytes() == 32U);
}

BOOST_FIXTURE_TEST_CASE(a_pinned_slot_may_be_made_after_its_pool_has_gone, Pinning) {
  {
    move::StagingPool pool(32, 32);
    BOOST_TEST(!try_from(pool));
    BOOST_TEST(!pool.acquire());
  }
  BOOST_TEST(queue.poll() == 1U);
  BOOST_TEST(made == 1);
  BOOST_TEST(devices->pinned_bytes() == 0U);
}

BOOST_FIXTURE_TEST_CASE(pinned_slots_and_others_share_one_budget, Pinning) {
  move::StagingPool pool(128, 32);
  {
    const move::Slot pinned = from(pool);
    BOOST_TEST(pinned.place() == memory::on_pinned_host);
    const move::Slot others[] = {pool.acquire(), pool.acquire(), pool.acquire()};
    for (const move::Slot& slot : others) BOOST_TEST(slot.place() == memory::on_host);
    BOOST_TEST(!from(pool));
  }
  {  // slots of the other kind are freed
    const move::Slot slots[] = {from(pool), from(pool), from(pool), from(pool)};
    for (const move::Slot& slot : slots) {
      BOOST_TEST(slot.place() == memory::on_pinned_host);
      slot.bytes()[31] = std::byte{1};
    }
    BOOST_TEST(devices->pinned_bytes() == 128U);
  }
  BOOST_TEST(static_cast<bool>(pool.acquire()));  // pinned memory serves both kinds
  BOOST_TEST(devices->max_pinned_bytes() == 128U);
  pool.trim(0);
  BOOST_TEST(devices->pinned_bytes() == 0U);
}

BOOST_FIXTURE_TEST_CASE(a_pinned_slot_that_cannot_be_made_takes_none_away, Pinning) {
  move::StagingPool pool(64, 32);
  devices->refuse_host_memory(true);
  BOOST_TEST(!try_from(pool));
  BOOST_TEST(queue.poll() == 1U);
  BOOST_TEST((failure == ErrorCode::out_of_resources));
  BOOST_TEST(pool.free_slots() == 2U);
  const move::Slot slots[] = {pool.acquire(), pool.acquire()};
  for (const move::Slot& slot : slots) slot.bytes()[31] = std::byte{1};
}

// Callers that wait for it continue with the slots that exist.
BOOST_FIXTURE_TEST_CASE(a_second_pinned_slot_that_cannot_be_made_is_no_error, Pinning) {
  move::StagingPool pool(64, 32);
  {
    const move::Slot first = from(pool);
    BOOST_REQUIRE(static_cast<bool>(first));
    devices->refuse_host_memory(true);
    BOOST_TEST(!from(pool));
    BOOST_TEST(made == 2);
    BOOST_TEST(!failure.has_value());
    BOOST_TEST(!from(pool));  // the pool does not try again
    BOOST_TEST(made == 2);
  }
  BOOST_TEST(static_cast<bool>(from(pool)));
}

BOOST_AUTO_TEST_CASE(copies_of_the_host_make_no_pinned_slots) {
  memory::Copier copier(1, [] {});
  memory::HostCopies copies(copier);
  move::StagingPool pool(64, 32);
  BOOST_CHECK_THROW(pool.acquire_pinned(copies, [](const std::exception_ptr&) {}), Error);
  BOOST_TEST(pool.free_slots() == 2U);
}

BOOST_AUTO_TEST_SUITE_END()
