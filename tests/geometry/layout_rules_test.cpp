// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"
#include "support/allocated_bytes.hpp"
#include "support/random_layout.hpp"

namespace std {
ostream& operator<<(ostream& out, const shardwire::RuleDescription& description);
ostream& operator<<(ostream& out, const shardwire::RuleDescription& description) {
  return out << description.kind;
}
}  // namespace std

BOOST_AUTO_TEST_SUITE(layout_rules)

using namespace shardwire;

namespace {

constexpr Extent huge = std::numeric_limits<Extent>::max();

using Field = std::pair<std::string, std::vector<Extent>>;

RuleDescription mesh_with(const std::vector<Field>& changes) {
  RuleDescription mesh{
      "mesh", {{"shape", {2, 2}}, {"placements", {1, 0, 0, 0, 0, 0}}, {"tp_first", {0}}, {"first", {0}}}, {}};
  for (const Field& change : changes) {
    const auto same = std::find_if(mesh.fields.begin(), mesh.fields.end(),
                                   [&](const Field& field) { return field.first == change.first; });
    if (same == mesh.fields.end())
      mesh.fields.push_back(change);
    else
      same->second = change.second;
  }
  return mesh;
}

RuleDescription boxes_with(std::vector<Extent> ranks, std::vector<Extent> counts, std::vector<Extent> boxes) {
  return {"boxes", {{"ranks", std::move(ranks)}, {"counts", std::move(counts)}, {"boxes", std::move(boxes)}}, {}};
}

std::vector<Extent> zeros(std::size_t count) {
  return std::vector<Extent>(count, 0);
}

// One box of two elements.
RuleDescription placed_with(std::vector<Extent> places) {
  RuleDescription boxes = boxes_with({0}, {1}, {1, 0, 2});
  boxes.fields.emplace_back("places", std::move(places));
  return boxes;
}

RuleDescription block_cyclic_with(std::vector<Extent> block, std::vector<Extent> grid, std::vector<Extent> source) {
  return {"blockcyclic", {{"block", std::move(block)}, {"grid", std::move(grid)}, {"source", std::move(source)}}, {}};
}

RuleDescription flat_with(std::vector<Extent> shape, std::vector<Extent> place) {
  return {"flat", {{"shape", std::move(shape)}, {"place", std::move(place)}}, {}};
}

const RuleDescription replicated{"replicated", {}, {}};

const std::vector<RuleDescription> hostile{
    {"flatt", {}, {}},
    {"", {}, {}},
    {"replicated", {{"x", {}}}, {}},
    {"replicated", {}, {{"replicated", {}, {}}}},
    {"chunk", {{"dim", {0}}}, {}},
    {"chunk", {{"dim", {0}}, {"over", {0}}}, {}},
    {"chunk", {{"dim", {0}}, {"over", {huge}}}, {}},
    {"chunk", {{"dim", {8}}, {"over", {2}}}, {}},
    {"chunk", {{"dim", {0, 0}}, {"over", {2}}}, {}},
    {"chunk", {{"dim", {0}}, {"dim", {0}}, {"over", {2}}}, {}},
    {"chunk", {{"dim", {0}}, {"over", {2}}, {"more", {}}}, {}},
    mesh_with({{"shape", {huge, huge}}}),
    mesh_with({{"shape", {1 << 20, 1 << 20}}}),
    mesh_with({{"shape", {1 << 20, 1 << 20}}, {"first", {1}}}),
    mesh_with({{"shape", {-1, -1}}}),
    mesh_with({{"shape", {0, 2}}, {"first", {1}}}),
    mesh_with({{"shape", {2}}}),
    mesh_with({{"shape", {}}, {"placements", {}}}),
    mesh_with({{"placements", {1, 0, 0, 0, 0}}}),
    mesh_with({{"placements", {3, 0, 0, 0, 0, 0}}}),
    mesh_with({{"placements", {1, huge, 0, 0, 0, 0}}}),
    mesh_with({{"placements", {2, 0, huge, 0, 0, 0}}}),
    mesh_with({{"placements", {2, 0, 1 << 15, 2, 1, 1 << 15}}}),
    mesh_with({{"placements", {2, 0, -1, 0, 0, 0}}}),
    mesh_with({{"placements", zeros(3000)}, {"shape", std::vector<Extent>(1000, 1)}}),
    mesh_with({{"tp_first", {2}}}),
    mesh_with({{"first", {-1}}}),
    mesh_with({{"first", {huge}}}),
    mesh_with({{"ranks", {0, 1, 2, 3}}}),  // given in addition to "first"
    {"mesh", {{"shape", {2}}, {"placements", {1, 0, 0}}, {"tp_first", {0}}, {"ranks", {}}}, {}},
    {"mesh", {{"shape", {2}}, {"placements", {1, 0, 0}}, {"tp_first", {0}}, {"ranks", {1, huge}}}, {}},
    {"mesh", {{"shape", {2}}, {"placements", {1, 0, 0}}, {"tp_first", {0}}, {"ranks", {1, 1}}}, {}},
    boxes_with({0}, {}, {}),
    boxes_with({0}, {huge}, {1, 0, 1}),
    boxes_with({0}, {1}, {9, 0, 1}),
    boxes_with({0}, {1}, {-1}),
    boxes_with({0}, {1}, {huge}),
    boxes_with({0}, {1}, {2, 0, 0, 1}),
    boxes_with({0}, {1}, {1, 0, 1, 7}),
    boxes_with({0}, {1}, {1, huge, huge}),
    boxes_with({0}, {1}, {2, 0, 0, huge, huge}),
    boxes_with({0, 0}, {0, 0}, {}),
    boxes_with({-1}, {0}, {}),
    boxes_with({huge}, {0}, {}),
    placed_with({0}),        // no strides
    placed_with({0, 1, 0}),  // a number left
    placed_with({-1, 1}),    // negative offset
    placed_with({0, -1}),    // negative stride
    placed_with({0, 0}),     // two elements in one place
    placed_with({huge, 1}),  // the last place
    placed_with({0, huge}),  // and through the stride
    block_cyclic_with({2}, {2, 1}, {0}),
    block_cyclic_with({0}, {2}, {0}),
    block_cyclic_with({2}, {0}, {0}),
    block_cyclic_with({2}, {2}, {2}),
    block_cyclic_with({2}, {2}, {-1}),
    block_cyclic_with({2, 2}, {1 << 20, 1 << 20}, {0, 0}),
    block_cyclic_with(zeros(9), zeros(9), zeros(9)),
    {"within", {{"outer_ranks", {2}}}, {}},
    {"within", {{"outer_ranks", {2}}}, {replicated}},
    {"within", {{"outer_ranks", {0}}}, {replicated, replicated}},
    {"within", {{"outer_ranks", {huge}}}, {replicated, replicated}},
    {"within", {{"outer_ranks", {2}}}, {boxes_with({0}, {0}, {}), replicated}},
    {"within", {{"outer_ranks", {2}}}, {replicated, {"flatt", {}, {}}}},
    {"on_ranks", {{"ranks", {0}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, 2}}}, {}},
    {"on_ranks", {{"ranks", {-1, 2}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, -1}}}, {replicated}},
    {"on_ranks", {{"ranks", {2, std::numeric_limits<std::int32_t>::max()}}}, {replicated}},
    {"on_ranks", {{"ranks", {huge, 2}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, 2, 0}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, 2, -2}}}, {replicated}},
    {"on_ranks", {{"ranks", {1, 1 << 16, 1 << 16}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, 2, huge}}}, {replicated}},
    {"on_ranks", {{"ranks", {0, 2, 1, 1}}}, {replicated}},
    {"on_ranks", {{"listed", {3, 1}}}, {}},
    {"on_ranks", {{"listed", {3, 1, 3}}}, {replicated}},
    {"on_ranks", {{"listed", {3, -1}}}, {replicated}},
    {"on_ranks", {{"listed", {3, huge}}}, {replicated}},
    {"on_ranks", {{"listed", {3, 1}}, {"ranks", {0, 2}}}, {replicated}},
    {"on_ranks", {{"listed", {3, 1}}}, {replicated, replicated}},
    {"packed", {}, {}},
    {"packed", {{"places", {0}}}, {replicated}},
    {"packed", {}, {replicated, replicated}},
    {"packed", {}, {{"flatt", {}, {}}}},
    flat_with({3, 5}, {2, 1, 0}),           // no part
    flat_with({3, 5}, {2, 3, 0, 8, 0, 8}),  // two places for three outer ranks
    flat_with({3, 5}, {0, 1, 0, 8}),
    flat_with({3, 5}, {2, 0, 0, 8}),
    flat_with({3, 5}, {1 << 20, 1 << 20, 0, 8}),
    flat_with({3, 5}, {huge, 1, 0, 8}),
    flat_with({3, 5}, {2, 1, -1, 8}),
    flat_with({3, 5}, {2, 1, 0, -8}),
    flat_with({3, 5}, {2, 1, 0, huge}),
    flat_with(zeros(9), {2, 1, 0, 8}),
    {"flat", {{"shape", {3, 5}}, {"place", {2, 1, 0, 8}}, {"order", {0, 0}}}, {}},
    {"flat", {{"shape", {3, 5}}, {"place", {2, 1, 0, 8}}, {"order", {0, huge}}}, {}},
    {"flat", {{"shape", {3, 5}}, {"place", {2, 1, 0, 8}}}, {replicated, replicated}},
    {"flat", {{"shape", {3, 5}}, {"place", {2, 1, 0, 8}}}, {boxes_with({0}, {0}, {})}},
};

}  // namespace

BOOST_DATA_TEST_CASE(a_hostile_description_is_refused, boost::unit_test::data::make(hostile), description) {
  BOOST_CHECK_EXCEPTION(layout_from(description), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
}

BOOST_AUTO_TEST_CASE(the_descriptions_that_the_hostile_ones_start_from_are_sound) {
  BOOST_TEST((layout_from(mesh_with({})) == Layout::mesh({2, 2}, {Shard{0}, Replicate{}})));
  BOOST_TEST((layout_from(boxes_with({3}, {1}, {1, 2, 4})) == Layout::boxes({{Rank{3}, {{{2}, {4}}}}})));
  const PlacedBoxMap placed{{Rank{0}, {{{{0}, {2}}, 7, {3}}}}};
  BOOST_TEST((layout_from(placed_with({7, 3})) == Layout::boxes(placed)));
  BOOST_TEST((layout_from(block_cyclic_with({2}, {3}, {1})) == Layout::block_cyclic({2}, {3}, {1})));
  const Layout whole = Layout::replicated();
  BOOST_TEST((layout_from({"packed", {}, {replicated}}) == Layout::packed(whole)));
  BOOST_TEST(
      (layout_from({"on_ranks", {{"listed", {3, 1}}}, {replicated}}) == Layout::on_ranks(whole, {Rank{3}, Rank{1}})));
  BOOST_TEST((layout_from({"on_ranks", {{"ranks", {1, 3, 2}}}, {replicated}}) ==
              Layout::on_ranks(whole, {Rank{1}, Rank{3}, Rank{5}})));
  BOOST_TEST((layout_from(flat_with({3, 5}, {2, 1, 0, 8})) == Layout::flat(std::vector{FlatMember{{3, 5}}}, 2)[0]));
}

BOOST_AUTO_TEST_CASE(a_layout_survives_its_description) {
  test::Random random(test::seed());
  for (int round = 0; round < 500; ++round) {
    const Extents shape = test::random_shape(random);
    const Layout layout = test::random_layout(random, shape, 8);
    const Layout copy = layout_from(layout.rule().describe());
    BOOST_TEST((copy == layout));
    BOOST_TEST(copy.kind() == layout.kind());
    BOOST_TEST(copy.to_string() == layout.to_string());
    for (int rank = 0; rank < 8; ++rank) {
      BOOST_TEST((copy.boxes_of(shape, Rank{rank}) == layout.boxes_of(shape, Rank{rank})));
    }
  }
}

BOOST_AUTO_TEST_CASE(regular_ranks_are_never_listed) {
  // A thousand meshes of 2^24 ranks each, starting at rank 1: stored as lists, they would soon exhaust memory.
  std::vector<Layout> layouts;
  for (int i = 0; i < 1000; ++i)
    layouts.push_back(layout_from(mesh_with({{"shape", {1 << 12, 1 << 12}}, {"first", {1}}})));
  BOOST_TEST(layouts[999].boxes_of({1 << 12}, Rank{1 << 24})[0].box.lower(0) == (1 << 12) - 1);
  BOOST_TEST(layouts[999].boxes_of({1 << 12}, Rank{0}).empty());
  for (Layout& layout : layouts)
    layout =
        layout_from({"on_ranks", {{"ranks", {1, 1 << 24, 64}}}, {{"chunk", {{"dim", {0}}, {"over", {1 << 24}}}, {}}}});
  BOOST_TEST(layouts[999].boxes_of({1 << 24}, Rank{1 + 64 * 7})[0].box.lower(0) == 7);
  BOOST_TEST(layouts[999].boxes_of({1 << 24}, Rank{64 * 7}).empty());
}

BOOST_AUTO_TEST_CASE(a_manifest_of_a_flat_model_says_little_per_tensor) {
  const auto layouts =
      Layout::flat(std::vector<FlatMember>(3, FlatMember{{4096, 4096}, Layout::chunk(0, 8), {}}), 4, 0, 8);
  const RuleDescription description = layouts[2].rule().describe();
  BOOST_TEST(description.fields.size() == 2U);
  BOOST_TEST(description.fields[1].second.size() == 4U);  // one entry for all outer ranks, which are split alike
}

BOOST_AUTO_TEST_CASE(layouts_are_equal_when_kind_and_parameters_are) {
  const auto mesh = [](int factor) { return Layout::mesh({2}, {StridedShard{0, factor}}); };
  BOOST_TEST((mesh(2) == mesh(2)));
  BOOST_TEST((mesh(2) != mesh(3)));
  BOOST_TEST((Layout::chunk(0, 2) != Layout::mesh({2}, {Shard{0}})));
  BOOST_TEST((Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{0}, Rank{1}}) == Layout::mesh({2}, {Shard{0}})));
  BOOST_TEST((Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{1}, Rank{0}}) != Layout::mesh({2}, {Shard{0}})));
  BOOST_TEST((Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{2}, Rank{3}}) != Layout::mesh({2}, {Shard{0}})));
}

BOOST_AUTO_TEST_CASE(a_layout_reads_well) {
  BOOST_TEST(Layout::replicated().to_string() == "replicated");
  BOOST_TEST(Layout::mesh({4, 2}, {StridedShard{0, 2}, Replicate{}}, MeshOrder::tp_first).to_string() ==
             "mesh (4, 2) [SS(0,2), R] tp_first");
  BOOST_TEST(Layout::mesh({2}, {Shard{-1}}, MeshOrder::mesh, {Rank{4}, Rank{5}}).to_string() ==
             "mesh (2) [S(-1)] from rank 4");
  BOOST_TEST(Layout::block_cyclic({2, 3}, {2, 2}, {0, 1}).to_string() ==
             "blockcyclic (block (2, 3), grid (2, 2), source (0, 1))");
  BOOST_TEST(Layout::within(Layout::chunk(0, 2), 2, Layout::chunk(1, 3)).to_string() ==
             "chunk(dim 1, over 3) within chunk(dim 0, over 2) of 2 ranks");
  BOOST_TEST(Layout::on_ranks(Layout::chunk(0, 2), Rank{4}, 2).to_string() ==
             "chunk(dim 0, over 2) on 2 ranks from rank 4");
  BOOST_TEST(Layout::on_ranks(Layout::chunk(0, 2), {Rank{5}, Rank{4}}).to_string() ==
             "chunk(dim 0, over 2) on 2 listed ranks");
  BOOST_TEST(Layout::on_ranks(Layout::chunk(0, 2), {Rank{1}, Rank{4}}).to_string() ==
             "chunk(dim 0, over 2) on 2 ranks from rank 1 in steps of 3");
  BOOST_TEST(
      Layout::flat(std::vector{FlatMember{{5}}, FlatMember{{3}, Layout::replicated(), {}}}, 4, 0, 2)[1].to_string() ==
      "flat (at 5 over 4) within replicated of 2 ranks");
  BOOST_TEST(Layout::boxes(PlacedBoxMap{{Rank{0}, {{{{0}, {2}}, 7, {1}}}}}).to_string() ==
             "boxes (1 on 1 ranks, placed)");
}

BOOST_AUTO_TEST_CASE(blocks_of_a_tensor_without_elements_are_not_listed) {
  const Layout layout = Layout::block_cyclic({1, 1}, {1, 2});
  const Extents shape{0, 1 << 24};
  layout.check(shape, 2);
  const std::uint64_t before = test::allocated_bytes();
  BOOST_TEST(layout.boxes_of(shape, Rank{1}).empty());
  BOOST_TEST(layout.local_elements(shape, Rank{1}) == 0);
  BOOST_TEST(test::allocated_bytes() - before < 4096U);
}

BOOST_AUTO_TEST_SUITE_END()
