// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "shardwire/plan.hpp"

BOOST_AUTO_TEST_SUITE(plan_runs)

using namespace shardwire;

namespace {

PlacedBox dense(const Box& box) {
  return {box, 0, row_major_strides(box.size)};
}

}  // namespace

BOOST_AUTO_TEST_CASE(whole_rows_are_one_run) {
  const Box piece{{4, 0}, {2, 8}};
  BOOST_TEST(runs_of(piece, dense({{0, 0}, {8, 8}}), dense({{4, 0}, {6, 8}})) == 1);
}

BOOST_AUTO_TEST_CASE(part_of_each_row_is_a_run_per_row) {
  const Box piece{{0, 2}, {6, 2}};
  const PlacedBox rows = dense({{0, 0}, {6, 8}});
  const PlacedBox columns = dense({{0, 2}, {6, 2}});
  BOOST_TEST(runs_of(piece, columns, columns) == 1);
  BOOST_TEST(runs_of(piece, rows, columns) == 6);  // a run must be contiguous on both sides
  BOOST_TEST(runs_of(piece, columns, rows) == 6);
}

BOOST_AUTO_TEST_CASE(a_run_spans_the_inner_dims_that_are_whole) {
  const PlacedBox local = dense({{0, 0, 0}, {4, 6, 5}});
  BOOST_TEST(runs_of({{0, 1, 0}, {4, 3, 5}}, local, local) == 4);
  BOOST_TEST(runs_of({{0, 1, 1}, {4, 3, 3}}, local, local) == 12);
  BOOST_TEST(runs_of({{1, 0, 0}, {2, 6, 5}}, local, local) == 1);
}

BOOST_AUTO_TEST_CASE(dims_of_one_element_never_break_a_run) {
  const PlacedBox local = dense({{0, 0, 0}, {4, 6, 5}});
  BOOST_TEST(runs_of({{2, 3, 1}, {1, 1, 4}}, local, local) == 1);
  BOOST_TEST(runs_of({{0, 3, 0}, {4, 1, 5}}, local, local) == 4);
  const PlacedBox column = dense({{0, 0}, {6, 1}});
  BOOST_TEST(runs_of({{1, 0}, {3, 1}}, column, column) == 1);
  BOOST_TEST(runs_of({{1, 0}, {3, 1}}, column, dense({{0, 0}, {6, 2}})) == 3);
}

BOOST_AUTO_TEST_CASE(local_strides_count_rather_than_box_sizes) {
  // Two intervals of 2 columns in one local array of 4 columns: no interval is contiguous over its rows.
  const auto held = Layout::mesh({2}, {StridedShard{1, 2}}).boxes_of({3, 8}, Rank{0});
  BOOST_TEST(held.size() == 2U);
  BOOST_TEST(runs_of(held[0].box, held[0], dense(held[0].box)) == 3);
  // Both sides transposed alike are contiguous in that order.
  const Box box{{0, 0}, {3, 4}};
  const PlacedBox transposed{box, 0, {1, 3}};
  BOOST_TEST(runs_of(box, transposed, transposed) == 1);
  BOOST_TEST(runs_of(box, transposed, dense(box)) == 12);
}

BOOST_AUTO_TEST_CASE(a_scalar_is_one_run_and_nothing_is_none) {
  BOOST_TEST(runs_of(Box::whole({}), dense(Box::whole({})), dense(Box::whole({}))) == 1);
  BOOST_TEST(runs_of({{0, 0}, {0, 4}}, dense({{0, 0}, {4, 4}}), dense({{0, 0}, {4, 4}})) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
