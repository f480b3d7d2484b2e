// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>

#include "move/transfer.hpp"
#include "support/random_layout.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(split)

using namespace shardwire;
namespace data = boost::unit_test::data;

namespace {

// Row-major position of a box's first element inside `whole`, which gives the required order of parts.
ElementCount position(const Box& whole, const Box& part) {
  ElementCount result = 0;
  for (std::size_t d = 0; d < whole.dims(); ++d) result = result * whole.size[d] + (part.offset[d] - whole.offset[d]);
  return result;
}

// A box inside a larger array on both sides, dims in any order, with gaps.
PlacedBox random_placed(test::Random& random, const Extents& shape) {
  PlacedBox placed{Box::whole(shape), test::pick(random, 0, 5), Extents::filled(shape.size(), 0)};
  std::vector<int> order = test::row_major(shape.size());
  if (test::pick(random, 0, 1) == 0) std::shuffle(order.begin(), order.end(), random);
  Extent stride = test::pick(random, 0, 2) == 0 ? 2 : 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const auto dim = static_cast<std::size_t>(order[i]);
    placed.local_strides[dim] = stride;
    stride = stride * shape[dim] + (test::pick(random, 0, 1) == 0 ? 0 : test::pick(random, 1, 4));
  }
  return placed;
}

// The boxes that the function adds to an empty list.
std::vector<Box> parts_of(const Box& box, ElementCount limit) {
  std::vector<Box> parts;
  move::split(box, limit, parts);
  return parts;
}
std::vector<Box> runs_of(const move::Transfer& transfer, ElementCount limit) {
  std::vector<Box> parts;
  move::split_into_runs(transfer, limit, parts);
  return parts;
}
std::vector<Box> hulls_of(const Box& box, const PlacedBox& placed, ByteCount item_bytes, ByteCount limit_bytes) {
  std::vector<Box> parts;
  move::split_hull(box, placed, item_bytes, limit_bytes, parts);
  return parts;
}

move::Transfer random_transfer(test::Random& random) {
  Extents shape = Extents::filled(static_cast<std::size_t>(test::pick(random, 1, 4)), 1);
  for (Extent& extent : shape) extent = test::pick(random, 1, 6);
  move::Transfer transfer;
  transfer.held = random_placed(random, shape);
  transfer.wanted = random_placed(random, shape);
  transfer.item_bytes = ByteCount{1} << test::pick(random, 0, 3);
  transfer.box = Box::whole(shape);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    transfer.box.offset[dim] = test::pick(random, 0, static_cast<int>(shape[dim]) - 1);
    transfer.box.size[dim] = test::pick(random, 1, static_cast<int>(shape[dim] - transfer.box.offset[dim]));
  }
  return transfer;
}

}  // namespace

BOOST_DATA_TEST_CASE(parts_are_consecutive_and_within_the_limit, data::xrange(1, 70), limit) {
  for (const Box& box : {Box{{3, 1, 2}, {5, 3, 4}}, Box{{0}, {17}}, Box{{2, 2}, {1, 9}}, Box{{}, {}}}) {
    ElementCount next = 0;
    for (const Box& part : parts_of(box, limit)) {
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
  BOOST_TEST((parts_of(box, 16) == std::vector<Box>{box}));
}

BOOST_AUTO_TEST_CASE(an_empty_box_has_no_parts) {
  BOOST_TEST(parts_of(Box{{0, 0}, {0, 4}}, 8).empty());
}

BOOST_AUTO_TEST_CASE(runs_lie_in_one_piece_on_both_sides_and_cover_the_box) {
  const std::uint64_t seed = test_seed();
  test::Random random(seed);
  for (int round = 0; round < 300; ++round) {
    BOOST_TEST_INFO("TEST_SEED=" << seed << " round " << round);
    const move::Transfer transfer = random_transfer(random);
    const auto limit = static_cast<ElementCount>(test::pick(random, 1, 20));
    const memory::StridedCopy whole(transfer.box, transfer.held, transfer.wanted, transfer.item_bytes);
    std::size_t parts = 0;
    ElementCount next = 0;
    for (const Box& part : runs_of(transfer, limit)) {
      const memory::StridedCopy copy(part, transfer.held, transfer.wanted, transfer.item_bytes);
      BOOST_REQUIRE_EQUAL(copy.runs(), 1U);
      BOOST_REQUIRE_LE(part.volume(), limit);
      BOOST_REQUIRE_EQUAL(position(transfer.box, part), next);
      next += part.volume();
      ++parts;
    }
    BOOST_REQUIRE_EQUAL(next, transfer.box.volume());
    if (whole.run_bytes() <= static_cast<ByteCount>(limit) * transfer.item_bytes) {
      BOOST_REQUIRE_EQUAL(parts, whole.runs());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_hull_reaches_from_the_first_element_to_the_last) {
  const Box box{{1, 2}, {3, 4}};
  BOOST_TEST(move::hull_bytes(box, {box, 0, {4, 1}}, 2) == 24U);
  BOOST_TEST(move::hull_bytes(box, {box, 7, {10, 1}}, 2) == (2U * 10 + 3 + 1) * 2);
  BOOST_TEST(move::hull_bytes(box, {box, 0, {1, 5}}, 8) == (2U + 15 + 1) * 8);
  BOOST_TEST(move::hull_bytes(Box{{}, {}}, {Box{{}, {}}, 0, {}}, 8) == 8U);
  BOOST_TEST(move::hull_bytes(Box{{0, 0}, {0, 4}}, {box, 0, {4, 1}}, 8) == 0U);
}

BOOST_AUTO_TEST_CASE(hulls_keep_within_the_limit_and_together_within_the_whole) {
  const std::uint64_t seed = test_seed();
  test::Random random(seed);
  for (int round = 0; round < 300; ++round) {
    BOOST_TEST_INFO("TEST_SEED=" << seed << " round " << round);
    const move::Transfer t = random_transfer(random);
    const auto limit = static_cast<ByteCount>(test::pick(random, 1, 300));
    std::vector<int> covered(static_cast<std::size_t>(t.box.volume()), 0);
    ByteCount sum = 0;
    for (const Box& part : hulls_of(t.box, t.held, t.item_bytes, limit)) {
      const ByteCount hull = move::hull_bytes(part, t.held, t.item_bytes);
      BOOST_REQUIRE(hull <= limit || part.volume() == 1);
      sum += hull;
      test::for_each_index(part.size, test::row_major(part.dims()), [&](const Extents& inside) {
        Box element{part.offset, Extents::filled(part.dims(), 1)};
        for (std::size_t dim = 0; dim < part.dims(); ++dim) element.offset[dim] += inside[dim];
        BOOST_REQUIRE(contains(t.box, element));
        ++covered[static_cast<std::size_t>(position(t.box, element))];
      });
    }
    BOOST_REQUIRE(std::all_of(covered.begin(), covered.end(), [](int times) { return times == 1; }));
    // The limit on unwanted bytes in reads was computed for the whole.
    BOOST_REQUIRE_LE(sum, move::hull_bytes(t.box, t.held, t.item_bytes));
  }
}

BOOST_AUTO_TEST_CASE(a_hull_within_the_limit_stays_whole) {
  const Box box{{0, 0}, {4, 4}};
  BOOST_TEST((hulls_of(box, {box, 0, {1, 4}}, 4, 64) == std::vector<Box>{box}));
  BOOST_TEST(hulls_of(Box{{0, 0}, {0, 4}}, {box, 0, {4, 1}}, 4, 64).empty());
}

BOOST_AUTO_TEST_CASE(columns_are_cut_apart_where_they_lie_one_behind_another) {
  const Box box = Box::whole({100, 3});
  const auto parts = hulls_of(box, {box, 0, {1, 100}}, 4, 400);
  BOOST_REQUIRE_EQUAL(parts.size(), 3U);
  for (Extent column = 0; column < 3; ++column) {
    BOOST_TEST((parts[static_cast<std::size_t>(column)] == Box{{0, column}, {100, 1}}));
  }
}

BOOST_AUTO_TEST_SUITE_END()
