// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "move/transfer.hpp"

using namespace shardwire;
namespace data = boost::unit_test::data;

namespace {

// Row-major position of a box's first element inside `whole`, which lists the order in which parts have to come.
ElementCount position(const Box& whole, const Box& part) {
  ElementCount result = 0;
  for (std::size_t d = 0; d < whole.dims(); ++d) result = result * whole.size[d] + (part.offset[d] - whole.offset[d]);
  return result;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cut)

BOOST_DATA_TEST_CASE(parts_are_consecutive_and_within_the_limit, data::xrange(1, 70), limit) {
  for (const Box& box : {Box{{3, 1, 2}, {5, 3, 4}}, Box{{0}, {17}}, Box{{2, 2}, {1, 9}}, Box{{}, {}}}) {
    ElementCount next = 0;
    for (const Box& part : move::cut(box, limit)) {
      BOOST_REQUIRE(contains(box, part));
      BOOST_REQUIRE_LE(part.volume(), limit);
      BOOST_REQUIRE_EQUAL(position(box, part), next);
      next += part.volume();
    }
    BOOST_REQUIRE_EQUAL(next, box.volume());
  }
}

BOOST_AUTO_TEST_CASE(a_box_within_the_limit_stays_whole) {
  const Box box{{1, 1}, {4, 4}};
  BOOST_TEST((move::cut(box, 16) == std::vector<Box>{box}));
}

BOOST_AUTO_TEST_CASE(an_empty_box_has_no_parts) {
  BOOST_TEST(move::cut(Box{{0, 0}, {0, 4}}, 8).empty());
}

BOOST_AUTO_TEST_SUITE_END()
