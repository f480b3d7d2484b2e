// SPDX-License-Identifier: Apache-2.0
// Random layouts of every kind against their meaning, element by element.
#include <boost/test/unit_test.hpp>

#include <map>

#include "geometry/layout_rule.hpp"
#include "support/random_layout.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(layout_oracle)

using namespace shardwire;
using namespace shardwire::test;

namespace {

/// The local buffer that a rank's boxes describe. Fails if two elements have one position.
Slots slots_of(const Layout& layout, const Extents& shape, int rank) {
  Slots slots(static_cast<std::size_t>(layout.local_elements(shape, Rank{rank})), -1);
  ElementCount previous = 0;
  for (const PlacedBox& placed : layout.boxes_of(shape, Rank{rank})) {
    BOOST_REQUIRE(!placed.box.empty());
    BOOST_REQUIRE(contains(Box::whole(shape), placed.box));
    BOOST_REQUIRE(placed.local_offset >= previous);  // local order
    previous = placed.local_offset;
    for_each_index(placed.box.size, row_major(shape.size()), [&](const Extents& inside) {
      Extents at = inside;
      ElementCount local = placed.local_offset;
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        at[dim] += placed.box.offset[dim];
        local += inside[dim] * placed.local_strides[dim];
      }
      BOOST_REQUIRE(local >= 0);
      BOOST_REQUIRE(static_cast<std::size_t>(local) < slots.size());
      ElementCount& slot = slots[static_cast<std::size_t>(local)];
      BOOST_REQUIRE(slot == -1);
      slot = global_index(shape, at);
    });
  }
  return slots;
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_kind_holds_what_its_definition_says) {
  const std::uint64_t first = seed();
  std::map<std::string, int> with_elements;
  int padded = 0;
  int several = 0;
  for (std::uint64_t round = 0; round < test::rounds(std::uint64_t{12'000}); ++round) {
    BOOST_TEST_CONTEXT("TEST_SEED=" << first << " round " << round) {
      Random random(first + round * 1'000'003);
      const Extents shape = random_shape(random);
      const int ranks = pick(random, 1, 12);
      const Sample sample = random_sample(random, shape, ranks);
      const Layout& layout = sample.layout;
      layout.check(shape, ranks);
      const Layout again = layout_from(layout.rule().describe());
      BOOST_REQUIRE(again == layout);
      bool any = false;
      for (int rank = 0; rank < ranks; ++rank) {
        const Slots expected = sample.meaning.slots(shape, rank);
        const Slots found = slots_of(layout, shape, rank);
        BOOST_TEST_INFO(layout.to_string() << " shape " << to_string(shape) << " rank " << rank);
        BOOST_REQUIRE(found == expected);
        BOOST_REQUIRE(slots_of(again, shape, rank) == expected);
        const std::size_t boxes = layout.boxes_of(shape, Rank{rank}).size();
        BOOST_REQUIRE(static_cast<ElementCount>(boxes) <= layout.rule().max_boxes(shape));
        const auto elements = found.size() - static_cast<std::size_t>(std::count(found.begin(), found.end(), -1));
        any = any || elements > 0;
        padded += elements > 0 && elements < found.size() ? 1 : 0;
        several += boxes > 1 ? 1 : 0;
      }
      if (any) ++with_elements[std::string(layout.kind())];
    }
  }
  for (const char* kind :
       {"blockcyclic", "boxes", "chunk", "flat", "mesh", "on_ranks", "packed", "replicated", "within"}) {
    BOOST_TEST_MESSAGE(kind << " " << with_elements[kind]);
    BOOST_TEST(with_elements[kind] > test::rounds(200), kind);
  }
  BOOST_TEST(padded > test::rounds(1000));
  BOOST_TEST(several > test::rounds(5000));
}

BOOST_AUTO_TEST_SUITE_END()
