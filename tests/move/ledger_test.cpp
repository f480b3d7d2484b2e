// SPDX-License-Identifier: Apache-2.0
#include "move/ledger.hpp"

#include <boost/test/unit_test.hpp>

#include <array>

namespace shardwire {
namespace {

constexpr ByteCount mib = 1u << 20;

struct FourTransfers {
  FourTransfers() {
    for (std::uint32_t peer = 0; peer < 4; ++peer) {
      transfers[peer].peer = peer;
      transfers[peer].item_bytes = 1;
    }
  }
  // Bytes [first, end) of what the peer gives.
  [[nodiscard]] move::TransferPart part(std::uint32_t peer, ElementCount first, ElementCount end) const {
    return {transfers[peer], Box{{first}, {end - first}}};
  }
  [[nodiscard]] ByteCount unproven_bytes(std::uint32_t peer) const {
    ByteCount bytes = 0;
    for (const move::TransferPart& unproven : ledger.unproven(peer)) bytes += unproven.bytes();
    return bytes;
  }

  std::array<move::Transfer, 4> transfers;
  move::Ledger ledger;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(ledger, FourTransfers)

BOOST_AUTO_TEST_CASE(a_proof_covers_what_had_arrived_when_it_began) {
  ledger.arrived(1, {part(1, 0, 10), part(1, 10, 15)});
  const auto mark = ledger.mark(1);
  ledger.arrived(1, {part(1, 15, 40)});
  BOOST_TEST(unproven_bytes(1) == 40u);
  ledger.prove(1, mark);
  BOOST_TEST(unproven_bytes(1) == 25u);
  BOOST_REQUIRE(ledger.unproven(1).size() == 1u);
  BOOST_TEST(ledger.unproven(1).front().box.offset[0] == 15);
}

BOOST_AUTO_TEST_CASE(proofs_that_end_in_another_order_prove_no_more) {
  ledger.arrived(0, {part(0, 0, 10)});
  const auto first = ledger.mark(0);
  ledger.arrived(0, {part(0, 10, 20)});
  const auto second = ledger.mark(0);
  ledger.arrived(0, {part(0, 20, 30)});
  ledger.prove(0, second);
  ledger.prove(0, first);
  BOOST_TEST(unproven_bytes(0) == 10u);
}

BOOST_AUTO_TEST_CASE(peers_are_apart) {
  ledger.arrived(2, {part(2, 0, 7)});
  ledger.arrived(0, {part(0, 0, 5)});
  ledger.prove(0, ledger.mark(0));
  BOOST_TEST(unproven_bytes(0) == 0u);
  BOOST_TEST(unproven_bytes(2) == 7u);
  BOOST_TEST(unproven_bytes(3) == 0u);
  BOOST_TEST(ledger.unproven(3).empty());
  BOOST_TEST(ledger.mark(3) == 0u);
}

BOOST_AUTO_TEST_CASE(a_proof_is_due_for_each_sixteenth_but_not_for_less_than_a_mebibyte) {
  ledger.expect(0, 64 * mib);
  ledger.expect(1, 4 * mib);
  ledger.expect(2, 4096 * mib);
  const auto arrives = [&](std::uint32_t peer, ByteCount bytes) {
    ledger.arrived(peer, {part(peer, 0, static_cast<ElementCount>(bytes))});
    return ledger.next_due() == peer;
  };
  BOOST_TEST(!arrives(0, 3 * mib));
  BOOST_TEST(arrives(0, mib));
  BOOST_TEST(!arrives(0, 3 * mib));
  BOOST_TEST(arrives(0, mib));
  BOOST_TEST(!arrives(1, mib / 2));
  BOOST_TEST(arrives(1, mib / 2));
  BOOST_TEST(!arrives(2, 63 * mib));  // at most 64 MiB are unproven
  BOOST_TEST(arrives(2, mib));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace shardwire
