// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "geometry/footprint.hpp"

#include <boost/test/unit_test.hpp>
#include <map>
#include <set>

#include "geometry/layout_rule.hpp"
#include "geometry/strides.hpp"
#include "shardwire/error.hpp"
#include "support/random_layout.hpp"

BOOST_AUTO_TEST_SUITE(footprint)

using namespace shardwire;

namespace {

// Addresses only: nothing is read.
const void* at(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);
}

PlacedBoxes rows(Extent count, Extent width, Extent stride) {
  return place_boxes(Layout::replicated(), {count, width}, Rank{0}, {stride, 1});
}

using Pairs = std::set<std::pair<std::size_t, std::size_t>>;

Pairs pairs_of(const std::vector<Claim>& claims) {
  Pairs pairs;
  find_conflicts(claims, [&](const Conflict& conflict) {
    BOOST_TEST(claims[conflict.written].written);
    BOOST_TEST(pairs.insert(std::minmax(conflict.written, conflict.other)).second);
    return true;
  });
  return pairs;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_dense_array_is_one_run_in_any_order_of_dims) {
  BOOST_TEST(Footprint(at(1000), rows(30, 40, 40), 4).runs() == 1U);
  BOOST_TEST(Footprint(at(1000), place_boxes(Layout::replicated(), {30, 40}, Rank{0}, {1, 30}), 4).runs() == 1U);
  const PlacedBoxes strided = place_boxes(Layout::mesh({2}, {StridedShard{0, 8}}), {64, 3}, Rank{1});
  BOOST_TEST(strided.all().size() == 8U);
  BOOST_TEST(Footprint(at(1000), strided, 4).runs() == 1U);
}

BOOST_AUTO_TEST_CASE(rows_of_a_wider_array_are_a_run_each) {
  const Footprint footprint(at(1000), rows(30, 4, 10), 2);
  BOOST_TEST(footprint.runs() == 30U);
  BOOST_TEST(footprint.bounds().first == 1000U);
  BOOST_TEST(footprint.bounds().end == 1000U + 2 * (29 * 10 + 4));
}

BOOST_AUTO_TEST_CASE(claims_that_interleave_without_a_common_byte_are_no_conflict) {
  // Fused rows of q, k and v, 4 elements each.
  std::vector<Claim> claims;
  for (std::uintptr_t part = 0; part < 3; ++part) {
    claims.push_back({Footprint(at(1000 + 8 * part), rows(100, 4, 12), 2), true});
  }
  BOOST_TEST(pairs_of(claims).empty());
  claims[1] = {Footprint(at(1000 + 7), rows(100, 4, 12), 2), true};  // one byte into q
  BOOST_TEST((pairs_of(claims) == Pairs{{0, 1}}));
}

BOOST_AUTO_TEST_CASE(claims_that_only_read_may_share_everything) {
  std::vector<Claim> claims(3, {Footprint(at(1000), 64), false});
  BOOST_TEST(pairs_of(claims).empty());
  claims.push_back({Footprint(at(1063), 1), true});
  BOOST_TEST((pairs_of(claims) == Pairs{{0, 3}, {1, 3}, {2, 3}}));
}

BOOST_AUTO_TEST_CASE(parts_of_one_claim_that_overlap_are_found) {
  const PlacedBoxes twice({{Box{{0}, {4}}, 0, {1}}, {Box{{4}, {4}}, 3, {1}}, {Box{{8}, {4}}, 20, {1}}});
  BOOST_TEST((pairs_of({{Footprint(at(1000), twice, 4), true}}) == Pairs{{0, 0}}));
}

BOOST_AUTO_TEST_CASE(too_many_runs_fall_back_to_the_ranges_around_them) {
  const auto many = static_cast<Extent>(max_compared_runs);
  std::vector<Claim> claims{{Footprint(at(1000), rows(many, 1, 2), 1), true},
                            {Footprint(at(1001), rows(many, 1, 2), 1), true}};
  bool exact = true;
  find_conflicts(claims, [&](const Conflict& conflict) { return exact = conflict.exact; });
  BOOST_TEST(!exact);
  claims.pop_back();
  BOOST_TEST(pairs_of(claims).empty());
}

BOOST_AUTO_TEST_CASE(the_first_conflict_can_be_the_last_that_is_asked_for) {
  const std::vector<Claim> claims(5, {Footprint(at(1000), 64), true});
  int calls = 0;
  find_conflicts(claims, [&](const Conflict&) { return ++calls < 2; });
  BOOST_TEST(calls == 2);
}

BOOST_AUTO_TEST_CASE(conflicts_are_those_found_byte_by_byte) {
  test::Random random(test::seed());
  std::size_t found = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<Claim> claims;
    std::map<std::uintptr_t, std::vector<std::size_t>> bytes;
    for (std::size_t i = 0; i < 6; ++i) {
      const Extents shape = test::random_shape(random);
      const Layout layout = test::random_layout(random, shape, 4);
      try {
        layout.check(shape, 4);
      } catch (const Error&) {
        continue;
      }
      const Rank rank{test::pick(random, 0, 3)};
      PlacedBoxes boxes = place_boxes(layout, shape, rank);
      if (layout.rule().has_local_array() && !boxes.all().empty() && !shape.empty() && test::pick(random, 0, 1) == 0) {
        Extents strides = boxes.all().front().local_strides;
        for (Extent& stride : strides) stride *= 2;
        boxes = place_boxes(layout, shape, rank, strides);
      }
      const auto item = static_cast<ByteCount>(test::pick(random, 1, 4));
      const auto base = static_cast<std::uintptr_t>(test::pick(random, 1000, 1400));
      for (const PlacedBox& placed : boxes.all()) {
        for (ElementCount n = 0; n < placed.box.volume(); ++n) {
          ElementCount rest = n;
          ElementCount local = placed.local_offset;
          for (std::size_t dim = placed.box.dims(); dim-- > 0; rest /= placed.box.size[dim]) {
            local += rest % placed.box.size[dim] * placed.local_strides[dim];
          }
          for (ByteCount k = 0; k < item; ++k) {
            bytes[base + static_cast<ByteCount>(local) * item + k].push_back(claims.size());
          }
        }
      }
      claims.push_back({Footprint(at(base), boxes, item), test::pick(random, 0, 1) == 0});
    }
    Pairs expected;
    for (const auto& [address, holders] : bytes) {
      for (std::size_t i = 0; i < holders.size(); ++i) {
        for (std::size_t k = i + 1; k < holders.size(); ++k) {
          if (claims[holders[i]].written || claims[holders[k]].written) {
            expected.insert(std::minmax(holders[i], holders[k]));
          }
        }
      }
    }
    BOOST_TEST((pairs_of(claims) == expected));
    found += expected.size();
  }
  BOOST_TEST(found > 100U);
}

BOOST_AUTO_TEST_CASE(explicit_boxes_that_share_bytes_do_not_pass_for_dense) {
  // As many elements as the buffer spans, but one position is used twice and one is free.
  const PlacedBoxMap twice{{Rank{0}, {{{{0}, {2}}, 0, {1}}, {{{2}, {2}}, 1, {1}}, {{{4}, {2}}, 4, {1}}}}};
  const PlacedBoxes boxes = place_boxes(Layout::boxes(twice), {6}, Rank{0});
  BOOST_TEST(boxes.elements() == boxes.local_end());
  BOOST_TEST((pairs_of({{Footprint(at(1000), boxes, 4), true}}) == Pairs{{0, 0}}));
  const PlacedBoxMap separate{{Rank{0}, {{{{0}, {2}}, 4, {1}}, {{{2}, {2}}, 0, {1}}, {{{4}, {2}}, 2, {1}}}}};
  BOOST_TEST(pairs_of({{Footprint(at(1000), place_boxes(Layout::boxes(separate), {6}, Rank{0}), 4), true}}).empty());
}

BOOST_AUTO_TEST_SUITE_END()
