// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "geometry/strides.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <set>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"
#include "support/each_element.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(strides)

using namespace shardwire;

namespace {

constexpr Rank first{0};

template <typename Call>
std::string refusal_of(Call call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    BOOST_TEST((error.code() == code), error.what());
    return error.what();
  }
  BOOST_ERROR("nothing was refused");
  return {};
}

bool says(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_column_major_array_places_a_single_box) {
  const Layout layout = Layout::chunk(0, 2);
  const PlacedBoxes boxes = place_boxes(layout, {6, 4}, Rank{1}, {1, 3});
  BOOST_REQUIRE_EQUAL(boxes.all().size(), 1U);
  BOOST_TEST((boxes.all().front() == PlacedBox{Box{{3, 0}, {3, 4}}, 0, {1, 3}}));
  BOOST_TEST(boxes.local_end() == 12);
}

BOOST_AUTO_TEST_CASE(boxes_of_one_array_keep_their_coordinates_in_it) {
  // Rows 0, 1 and 3 of 5 lie in one local array of (3, 4): a strided shard.
  const Layout layout = Layout::mesh({2}, {StridedShard{0, 2}});
  const PlacedBoxes dense = place_boxes(layout, {5, 4}, first);
  BOOST_REQUIRE_EQUAL(dense.all().size(), 2U);
  const PlacedBoxes padded = place_boxes(layout, {5, 4}, first, {10, 2});
  BOOST_TEST((padded.all()[0] == PlacedBox{Box{{0, 0}, {2, 4}}, 0, {10, 2}}));
  BOOST_TEST((padded.all()[1] == PlacedBox{Box{{3, 0}, {1, 4}}, 20, {10, 2}}));
  BOOST_TEST(padded.local_end() == 27);
}

BOOST_AUTO_TEST_CASE(any_order_of_dims_places_every_element_once_where_its_coordinates_say) {
  test::Random random(test::seed());
  int strided = 0;
  for (int round = 0; round < 500; ++round) {
    const Extents shape = test::random_shape(random);
    const Layout layout = test::random_layout(random, shape, 4);
    const Rank rank{test::pick(random, 0, 3)};
    try {
      layout.check(shape, 4);
    } catch (const Error&) {
      continue;
    }
    const PlacedBoxes dense = place_boxes(layout, shape, rank);
    if (!layout.rule().has_local_array() || dense.all().empty() || shape.empty()) continue;
    // The shape of the local array, derived from outside: the range of each dim's coordinates.
    const Extents by = dense.all().front().local_strides;
    const auto coordinates = [&](ElementCount local) {
      Extents at = by;
      for (std::size_t dim = 0; dim < by.size(); ++dim) {
        at[dim] = local / by[dim];
        local %= by[dim];
      }
      return at;
    };
    Extents local_shape = Extents::filled(shape.size(), 0);
    test::each_element(dense.all(), shape, [&](ElementCount, ElementCount local) {
      const Extents at = coordinates(local);
      for (std::size_t dim = 0; dim < shape.size(); ++dim) local_shape[dim] = std::max(local_shape[dim], at[dim] + 1);
    });
    std::vector<std::size_t> order(shape.size());
    for (std::size_t dim = 0; dim < order.size(); ++dim) order[dim] = dim;
    std::shuffle(order.begin(), order.end(), random);
    Extents given = shape;
    Extent reach = 1;
    for (const std::size_t dim : order) {
      given[dim] = reach + test::pick(random, 0, 2);
      reach += given[dim] * (local_shape[dim] - 1);
    }
    const PlacedBoxes placed = place_boxes(layout, shape, rank, check_strides(layout, shape, rank, given));
    std::map<ElementCount, ElementCount> expected;  // by global index
    test::each_element(dense.all(), shape, [&](ElementCount index, ElementCount local) {
      const Extents at = coordinates(local);
      ElementCount moved = 0;
      for (std::size_t dim = 0; dim < at.size(); ++dim) moved += at[dim] * given[dim];
      expected[index] = moved;
    });
    std::set<ElementCount> addresses;
    std::size_t wrong = 0;
    test::each_element(placed.all(), shape, [&](ElementCount index, ElementCount local) {
      wrong += expected.at(index) != local ? 1 : 0;
      addresses.insert(local);
    });
    BOOST_TEST(wrong == 0U);
    BOOST_TEST(addresses.size() == expected.size());
    BOOST_TEST(placed.local_end() == *addresses.rbegin() + 1);
    ++strided;
  }
  BOOST_TEST(strided > 100);
}

BOOST_AUTO_TEST_CASE(strides_that_repeat_the_layout_come_back_empty) {
  BOOST_TEST(check_strides(Layout::replicated(), {3, 4}, first, {4, 1}).empty());
  BOOST_TEST(check_strides(Layout::replicated(), {1, 4}, first, {99, 1}).empty());  // dim 0 is never stepped along
  BOOST_TEST(check_strides(Layout::chunk(0, 8), {2, 4}, Rank{7}, {5, 5}).empty());  // holds nothing
  BOOST_TEST((check_strides(Layout::replicated(), {3, 4}, first, {1, 3}) == Extents{1, 3}));
}

BOOST_AUTO_TEST_CASE(strides_that_share_an_address_are_negative_or_too_few_are_refused) {
  const auto check = [](const Extents& strides) {
    return [=] { check_strides(Layout::replicated(), {3, 4}, first, strides); };
  };
  BOOST_TEST(says(refusal_of(check({0, 1}), ErrorCode::invalid_argument), "share an address"));
  BOOST_TEST(says(refusal_of(check({3, 1}), ErrorCode::invalid_argument), "share an address"));
  BOOST_TEST(says(refusal_of(check({1, 2}), ErrorCode::invalid_argument), "share an address"));
  BOOST_TEST(says(refusal_of(check({-4, 1}), ErrorCode::invalid_argument), "negative"));
  BOOST_TEST(says(refusal_of(check({4}), ErrorCode::layout_mismatch), "2 dims"));
}

BOOST_AUTO_TEST_CASE(strides_that_leave_64_bits_are_refused) {
  constexpr Extent most = std::numeric_limits<Extent>::max();
  refusal_of([] { check_strides(Layout::replicated(), {3, 4}, first, {most, 1}); }, ErrorCode::invalid_argument);
  refusal_of([] { place_boxes(Layout::replicated(), {3, 4}, first, {most, 1}); }, ErrorCode::invalid_argument);
  refusal_of(
      [] {
        place_boxes(Layout::replicated(), {3, 4}, first, {most / 2, most / 2});
      },
      ErrorCode::invalid_argument);
}

BOOST_AUTO_TEST_CASE(layouts_without_one_local_array_are_refused_by_name) {
  const Layout two = Layout::boxes({{first, {Box{{0, 0}, {2, 4}}, Box{{2, 0}, {2, 4}}}}});
  const Extents strides{1, 4};
  BOOST_TEST(says(refusal_of([&] { check_strides(two, {4, 4}, first, strides); }, ErrorCode::unsupported), "boxes"));
  BOOST_TEST(says(refusal_of([&] { place_boxes(two, {4, 4}, first, strides); }, ErrorCode::unsupported), "boxes"));
  const Layout one = Layout::boxes({{first, {Box{{1, 0}, {2, 4}}}}});
  BOOST_TEST((place_boxes(one, {4, 4}, first, {1, 2}).all().front() == PlacedBox{Box{{1, 0}, {2, 4}}, 0, {1, 2}}));
  const Layout rows = Layout::packed(Layout::chunk(0, 2));
  BOOST_TEST((place_boxes(rows, {4, 4}, first, {1, 2}).all().front() == PlacedBox{Box{{0, 0}, {2, 4}}, 0, {1, 2}}));
  const Layout blocks = Layout::packed(Layout::block_cyclic({1, 4}, {2, 1}));
  BOOST_TEST(says(refusal_of(
                      [&] {
                        check_strides(blocks, {4, 4}, first, strides);
                      },
                      ErrorCode::unsupported),
                  "packed"));
}

BOOST_AUTO_TEST_SUITE_END()
