// SPDX-License-Identifier: Apache-2.0
#include "move/peer_queues.hpp"

#include <boost/test/unit_test.hpp>
#include <deque>

BOOST_AUTO_TEST_SUITE(peer_queues)

using namespace shardwire;
using namespace shardwire::move;

namespace {

PeerQueues queues_of(const std::vector<ByteCount>& limits) {
  PeerQueues queues([](const Transfer& transfer, ByteCount limit, std::vector<Box>& parts) {
    split(transfer.box, std::max<ElementCount>(1, static_cast<ElementCount>(limit / transfer.item_bytes)), parts);
  });
  for (std::size_t peer = 0; peer < limits.size(); ++peer) queues.limit(static_cast<std::uint32_t>(peer), limits[peer]);
  return queues;
}

// Queues store pointers to transfers, so these must not move.
const Transfer& line(std::uint32_t peer, Extent elements, ByteCount item_bytes = 1) {
  static std::deque<Transfer> kept;
  Transfer& transfer = kept.emplace_back();
  transfer.peer = peer;
  transfer.box = Box::whole({elements});
  transfer.held = {transfer.box, 0, {1}};
  transfer.wanted = transfer.held;
  transfer.item_bytes = item_bytes;
  return transfer;
}

// Takes one part of the next peer in turn; returns the peer, or -1 if nothing is left.
int take_one(PeerQueues& queues) {
  int served = -1;
  queues.next([&](std::uint32_t peer) {
    if (queues.fitting(peer, 1).parts == 0) return false;
    served = static_cast<int>(peer);
    queues.take(peer, 1);
    return true;
  });
  return served;
}

}  // namespace

BOOST_AUTO_TEST_CASE(peers_take_turns_however_much_one_of_them_has) {
  PeerQueues queues = queues_of({10, 10, 10});
  queues.add(line(0, 1000));
  queues.add(line(1, 30));
  queues.add(line(2, 20));
  std::vector<int> order;
  for (int i = 0; i < 10; ++i) order.push_back(take_one(queues));
  BOOST_TEST(order == (std::vector<int>{0, 1, 2, 0, 1, 2, 0, 1, 0, 0}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_peer_that_cannot_be_served_is_passed_over_and_asked_again) {
  PeerQueues queues = queues_of({10, 10});
  queues.add(line(0, 100));
  queues.add(line(1, 100));
  std::vector<std::uint32_t> asked;
  BOOST_TEST(queues.next([&](std::uint32_t peer) {
    asked.push_back(peer);
    return peer == 1;
  }));
  BOOST_TEST(!queues.next([&](std::uint32_t peer) {
    asked.push_back(peer);
    return false;
  }));
  BOOST_TEST(asked == (std::vector<std::uint32_t>{0, 1, 0, 1}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(parts_keep_within_the_limit_of_their_peer) {
  PeerQueues queues = queues_of({64, 16});
  queues.add(line(0, 100, 4));
  queues.add(line(1, 100, 4));
  ByteCount bytes[2] = {};
  for (std::uint32_t peer = 0; peer < 2; ++peer) {
    const ByteCount limit = queues.limit_of(peer);
    while (queues.fitting(peer, 1).parts > 0) {
      BOOST_TEST(queues.front(peer).bytes() <= limit);
      bytes[peer] += queues.take(peer, 1).front().bytes();
    }
  }
  BOOST_TEST(bytes[0] == 400U);
  BOOST_TEST(bytes[1] == 400U);
}

BOOST_AUTO_TEST_CASE(parts_of_several_transfers_are_taken_together_up_to_the_limit) {
  PeerQueues queues = queues_of({10});
  for (const Extent elements : {4, 4, 4, 10, 1}) queues.add(line(0, elements));
  const auto take = [&](std::size_t most) {
    const PeerQueues::Fitting fitting = queues.fitting(0, most);
    ByteCount bytes = 0;
    for (const TransferPart& part : queues.take(0, fitting.parts)) bytes += part.bytes();
    BOOST_TEST(bytes == fitting.bytes);
    return fitting.parts;
  };
  BOOST_TEST(take(100) == 2U);
  BOOST_TEST(take(100) == 1U);
  BOOST_TEST(take(100) == 1U);
  BOOST_TEST(take(100) == 1U);
  BOOST_TEST(take(100) == 0U);
  for (int i = 0; i < 5; ++i) queues.add(line(0, 1));
  BOOST_TEST(take(3) == 3U);
  BOOST_TEST(take(3) == 2U);
}

BOOST_AUTO_TEST_CASE(an_element_above_the_limit_goes_by_itself) {
  PeerQueues queues = queues_of({4});
  queues.add(line(0, 3, 8));
  for (int i = 0; i < 3; ++i) {
    const PeerQueues::Fitting fitting = queues.fitting(0, 100);
    BOOST_TEST((fitting.parts == 1 && fitting.bytes == 8));
    BOOST_TEST(queues.take(0, 1).front().box.volume() == 1);
  }
  BOOST_TEST(queues.fitting(0, 100).parts == 0U);
}

BOOST_AUTO_TEST_CASE(transfers_without_parts_are_passed_over) {
  PeerQueues queues = queues_of({10});
  queues.add(line(0, 0));
  queues.add(line(0, 0));
  queues.add(line(0, 3));
  BOOST_TEST(queues.fitting(0, 100).bytes == 3U);
}

BOOST_AUTO_TEST_SUITE_END()
