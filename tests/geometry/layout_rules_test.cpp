// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include "geometry/layout_rule.hpp"
#include "shardwire/error.hpp"
#include "support/random_layout.hpp"

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
    mesh_with({{"ranks", {0, 1, 2, 3}}}),  // beside "first"
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
};

}  // namespace

namespace std {
ostream& operator<<(ostream& out, const shardwire::RuleDescription& description);
ostream& operator<<(ostream& out, const shardwire::RuleDescription& description) {
  return out << description.kind;
}
}  // namespace std

BOOST_AUTO_TEST_SUITE(layout_rules)

BOOST_DATA_TEST_CASE(a_hostile_description_is_refused, boost::unit_test::data::make(hostile), description) {
  BOOST_CHECK_EXCEPTION(layout_from(description), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
}

BOOST_AUTO_TEST_CASE(the_descriptions_that_the_hostile_ones_start_from_are_sound) {
  BOOST_TEST((layout_from(mesh_with({})) == Layout::mesh({2, 2}, {Shard{0}, Replicate{}})));
  BOOST_TEST((layout_from(boxes_with({3}, {1}, {1, 2, 4})) == Layout::boxes({{Rank{3}, {{{2}, {4}}}}})));
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
}

BOOST_AUTO_TEST_SUITE_END()
