// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "memory/copy_queue.hpp"
#include "move/staging.hpp"
#include "shardwire/error.hpp"
#include "support/fake_device.hpp"

using namespace shardwire;

BOOST_AUTO_TEST_SUITE(staging)

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

BOOST_AUTO_TEST_CASE(pinned_slots_and_others_share_one_budget) {
  test::UsedDevices devices;
  move::StagingPool pool(128, 32);
  {
    const move::Slot pinned = pool.acquire(move::SlotKind::pinned);
    BOOST_TEST(pinned.place() == memory::on_pinned_host);
    const move::Slot others[] = {pool.acquire(), pool.acquire(), pool.acquire()};
    for (const move::Slot& slot : others) BOOST_TEST(slot.place() == memory::on_host);
    BOOST_TEST(!pool.acquire(move::SlotKind::pinned));
  }
  {  // what was of the other kind makes way
    const move::Slot slots[] = {pool.acquire(move::SlotKind::pinned), pool.acquire(move::SlotKind::pinned),
                                pool.acquire(move::SlotKind::pinned), pool.acquire(move::SlotKind::pinned)};
    for (const move::Slot& slot : slots) {
      BOOST_TEST(slot.place() == memory::on_pinned_host);
      slot.bytes()[31] = std::byte{1};
    }
    BOOST_TEST(devices->pinned_bytes() == 128U);
  }
  BOOST_TEST(static_cast<bool>(pool.acquire()));  // pinned memory does for everything
  BOOST_TEST(devices->max_pinned_bytes() == 128U);
  pool.trim(0);
  BOOST_TEST(devices->pinned_bytes() == 0U);
}

BOOST_AUTO_TEST_CASE(a_pinned_slot_that_cannot_be_made_takes_none_away) {
  const auto code_of = [](move::StagingPool& pool) {
    try {
      pool.acquire(move::SlotKind::pinned);
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  move::StagingPool pool(64, 32);
  BOOST_TEST((code_of(pool) == ErrorCode::unsupported));
  {
    test::UsedDevices devices;
    devices->refuse_host_memory(true);
    BOOST_TEST((code_of(pool) == ErrorCode::out_of_resources));
  }
  BOOST_TEST(pool.free_slots() == 2U);
  const move::Slot slots[] = {pool.acquire(), pool.acquire()};
  for (const move::Slot& slot : slots) slot.bytes()[31] = std::byte{1};
}

BOOST_AUTO_TEST_SUITE_END()
