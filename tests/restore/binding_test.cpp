// SPDX-License-Identifier: Apache-2.0
#include "restore/binding.hpp"

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <vector>

BOOST_AUTO_TEST_SUITE(binding)

using namespace shardwire;
using restore::all_in_messages;

namespace {

move::Transfer transfer_of(std::uint32_t peer, Method method) {
  move::Transfer transfer;
  transfer.peer = peer;
  transfer.method = method;
  return transfer;
}

}  // namespace

BOOST_AUTO_TEST_CASE(zcopy_and_packed_come_in_messages) {
  const std::vector transfers{transfer_of(0, Method::zcopy), transfer_of(0, Method::packed)};
  BOOST_TEST(all_in_messages(transfers, 0));
}

BOOST_AUTO_TEST_CASE(one_transfer_of_another_method_is_enough_for_a_source_to_be_asked) {
  for (const Method method : {Method::local, Method::mapped, Method::read, Method::sieved_read, Method::collective}) {
    const std::vector transfers{transfer_of(0, Method::zcopy), transfer_of(0, method), transfer_of(1, Method::packed)};
    BOOST_TEST(!all_in_messages(transfers, 0), to_string(method));
    BOOST_TEST(all_in_messages(transfers, 1));
  }
}

BOOST_AUTO_TEST_SUITE_END()
