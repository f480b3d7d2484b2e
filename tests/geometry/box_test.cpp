// SPDX-License-Identifier: Apache-2.0
#include "shardwire/box.hpp"

#include <boost/test/unit_test.hpp>

#include "shardwire/error.hpp"

BOOST_AUTO_TEST_SUITE(box)

using namespace shardwire;

namespace {

bool is_invalid(const Error& error) {
  return error.code() == ErrorCode::invalid_argument;
}
bool is_unsupported(const Error& error) {
  return error.code() == ErrorCode::unsupported;
}

}  // namespace

BOOST_AUTO_TEST_CASE(overlap_is_the_common_region) {
  const auto common = intersect({{0, 4}, {3, 8}}, {{2, 0}, {5, 6}});
  BOOST_REQUIRE(common.has_value());
  BOOST_TEST(to_string(*common) == "[2:3, 4:6]");
}

BOOST_AUTO_TEST_CASE(overlap_of_touching_boxes_is_empty) {
  BOOST_TEST(!intersect({{0}, {4}}, {{4}, {4}}).has_value());
  BOOST_TEST(!intersect({{0, 0}, {4, 4}}, {{0, 4}, {4, 1}}).has_value());
}

BOOST_AUTO_TEST_CASE(an_empty_box_inside_another_does_not_overlap_it) {
  BOOST_TEST(!intersect({{0, 0}, {4, 4}}, {{2, 1}, {0, 2}}).has_value());
  BOOST_TEST(!intersect({{2, 1}, {0, 2}}, {{0, 0}, {4, 4}}).has_value());
}

BOOST_AUTO_TEST_CASE(scalars_overlap_in_one_element) {
  const Box scalar = Box::whole({});
  BOOST_TEST(scalar.volume() == 1);
  BOOST_TEST(!scalar.empty());
  BOOST_TEST(intersect(scalar, scalar).has_value());
  BOOST_TEST(contains(scalar, scalar));
  BOOST_TEST(to_string(scalar) == "[]");
}

BOOST_AUTO_TEST_CASE(containing_allows_shared_edges_only_inwards) {
  BOOST_TEST(contains({{1, 1}, {4, 4}}, {{1, 2}, {4, 3}}));
  BOOST_TEST(!contains({{1, 1}, {4, 4}}, {{0, 2}, {4, 3}}));
  BOOST_TEST(!contains({{1, 1}, {4, 4}}, {{1, 2}, {4, 4}}));
}

BOOST_AUTO_TEST_CASE(volume_is_a_64_bit_number) {
  BOOST_TEST(volume_of({1 << 20, 1 << 20, 3}) == Extent{3} << 40);
  BOOST_TEST(volume_of({}) == 1);
  BOOST_TEST(volume_of({Extent{1} << 62, 4, 0}) == 0);
  BOOST_CHECK_EXCEPTION(volume_of({Extent{1} << 31, Extent{1} << 31, 2}), Error, is_invalid);
}

BOOST_AUTO_TEST_CASE(strides_are_row_major) {
  BOOST_TEST((row_major_strides({2, 3, 5}) == Extents{15, 5, 1}));
  BOOST_TEST((row_major_strides({}) == Extents{}));
}

BOOST_AUTO_TEST_CASE(more_dims_than_supported_are_refused) {
  BOOST_CHECK_EXCEPTION((Extents{1, 2, 3, 4, 5, 6, 7, 8, 9}), Error, is_unsupported);
  BOOST_CHECK_EXCEPTION(Extents::filled(9, 0), Error, is_unsupported);
  BOOST_TEST(Extents::filled(8, 2).size() == 8);
}

BOOST_AUTO_TEST_CASE(shorter_extents_are_not_longer_ones_padded) {
  BOOST_TEST((Extents{1} != Extents{1, 0}));
  BOOST_TEST(to_string(Extents{5}) == "(5,)");
  BOOST_TEST(to_string(Extents{4096, 14336}) == "(4096, 14336)");
}

BOOST_AUTO_TEST_SUITE_END()
