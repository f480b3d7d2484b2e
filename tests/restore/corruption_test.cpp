// SPDX-License-Identifier: Apache-2.0
#include "restore/box_ledger.hpp"

#include <boost/test/unit_test.hpp>

#include <vector>

BOOST_AUTO_TEST_SUITE(corruption)

using namespace shardwire;
using restore::Corruption;
using restore::FoundCorrupt;

namespace {

FoundCorrupt found(int tensor, int rank) {
  return {TensorId{static_cast<std::uint32_t>(tensor)}, Rank{rank}, {"w", "m", {{0}, {1}}, Rank{rank}}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_holder_is_given_up_for_a_tensor_that_differs_in_two_runs) {
  Corruption corruption;
  const std::vector<FoundCorrupt> run{found(0, 3), found(0, 3), found(0, 3)};  // one run, however many blocks
  corruption.add(run);
  BOOST_TEST(corruption.holders().empty());
  corruption.add(run);
  BOOST_TEST((corruption.holders() == CorruptHolders{{TensorId{0}, {Rank{3}}}}));
  corruption.add(run);
  BOOST_TEST((corruption.holders() == CorruptHolders{{TensorId{0}, {Rank{3}}}}));
}

BOOST_AUTO_TEST_CASE(tensors_and_holders_are_counted_apart) {
  Corruption corruption;
  corruption.add(std::vector{found(0, 3)});
  corruption.add(std::vector{found(1, 3), found(0, 2)});
  BOOST_TEST(corruption.holders().empty());
  corruption.add(std::vector{found(1, 3)});
  BOOST_TEST((corruption.holders() == CorruptHolders{{TensorId{1}, {Rank{3}}}}));
}

BOOST_AUTO_TEST_SUITE_END()
