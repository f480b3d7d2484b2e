// SPDX-License-Identifier: Apache-2.0
// Layouts that the library writes as a case file, read again.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "case/case.hpp"
#include "case/json_node.hpp"
#include "json_schema.hpp"
#include "shardwire/catalog.hpp"
#include "shardwire/inventory.hpp"

BOOST_AUTO_TEST_SUITE(exported_cases)

namespace {

using namespace shardwire;

TensorLayout tensor(const std::string& fqn, const Extents& shape, Layout layout, DType dtype = DType::f32) {
  return {{{fqn, "exp_avg"}, dtype, shape}, std::move(layout)};
}

JobLayout staged(int ranks, std::vector<std::pair<std::vector<Rank>, std::vector<TensorLayout>>> stages) {
  JobLayout side{ranks, {}};
  for (auto& [members, tensors] : stages) {
    side.sections.push_back({std::make_shared<const Manifest>(Manifest{ranks, std::move(tensors)}), members});
  }
  return side;
}

Inventory published(JobLayout held) {
  Inventory inventory;
  inventory.step = 7;
  inventory.held = std::move(held);
  return inventory;
}

// Also accepted by the schema.
Case read_again(const std::string& text) {
  BOOST_TEST_INFO(text);
  const test::JsonSchema schema(case_schema());
  BOOST_TEST(schema.accepts(parse_json(text)));
  return parse_case(text);
}

std::vector<Box> boxes_of(const JobLayout& side, const TensorKey& key, Rank rank) {
  std::vector<Box> boxes;
  for (const Section& section : side.sections) {
    if (!std::ranges::binary_search(section.ranks, rank)) continue;
    for (const TensorLayout& one : section.manifest->tensors) {
      if (one.spec.key != key) continue;
      for (const PlacedBox& placed : one.layout.boxes_of(one.spec.shape, rank)) boxes.push_back(placed.box);
    }
  }
  return boxes;
}

// The first tensor of a side with one section.
const TensorLayout& first_of(const CaseSide& side) {
  return side.layout.sections.at(0).manifest->tensors.at(0);
}

void refused(ErrorCode code, const std::string& part, const std::function<void()>& action) {
  BOOST_CHECK_EXCEPTION(action(), Error, [&](const Error& error) {
    BOOST_TEST_INFO(error.what());
    return error.code() == code && std::string(error.what()).find(part) != std::string::npos;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_layout_that_case_files_have_words_for_is_the_same_one) {
  const Layout layouts[] = {
      Layout::replicated(),
      Layout::chunk(-1, 4),
      Layout::block_cyclic({2, 3}, {2, 2}, {1, 0}),
      Layout::mesh({2, 2}, {Shard{0}, Replicate{}}),
      Layout::mesh({2, 2}, {StridedShard{0, 2}, Shard{0}}, MeshOrder::tp_first),
      Layout::mesh({3}, {Shard{1}}, MeshOrder::mesh, {Rank{1}, Rank{2}, Rank{3}}),
      Layout::mesh({3}, {Shard{1}}, MeshOrder::mesh, {Rank{3}, Rank{0}, Rank{2}}),
      Layout::on_ranks(Layout::chunk(0, 2), {Rank{3}, Rank{1}}),
      Layout::on_ranks(Layout::replicated(), {Rank{0}, Rank{2}}),
  };
  for (const Layout& layout : layouts) {
    const Case job = read_again(published(JobLayout::uniform(4, {tensor("w", {8, 12}, layout)})).to_case());
    BOOST_TEST((first_of(job.source).layout == layout), layout.to_string());
    BOOST_TEST((first_of(job.target).layout == layout), layout.to_string());
    BOOST_TEST(job.source.ranks == 4);
  }
}

BOOST_AUTO_TEST_CASE(a_layout_without_words_has_the_boxes_of_each_rank) {
  const std::array members{FlatMember{{5, 3}}, FlatMember{{7}}};
  const std::vector<Layout> flat = Layout::flat(members, 4);
  const PlacedBoxMap places{{Rank{0}, {{Box{{0, 0}, {5, 1}}, 2, {4, 1}}}},
                            {Rank{3}, {{Box{{0, 1}, {5, 2}}, 0, {2, 1}}}}};
  const Layout layouts[] = {
      flat[0],
      Layout::packed(flat[0]),
      Layout::boxes(places),
      Layout::within(Layout::chunk(1, 2), 2, Layout::chunk(0, 2)),
      Layout::on_ranks(Layout::mesh({2}, {Shard{0}}, MeshOrder::mesh, {Rank{1}, Rank{0}}), {Rank{3}, Rank{2}}),
      Layout::on_ranks(Layout::mesh({2}, {Shard{0}}), {Rank{3}, Rank{2}, Rank{0}}),
  };
  for (const Layout& layout : layouts) {
    const JobLayout side = JobLayout::uniform(4, {tensor("w", {5, 3}, layout)});
    const Case job = read_again(published(side).to_case());
    for (int rank = 0; rank < 4; ++rank) {
      const TensorKey key{"w", "exp_avg"};
      BOOST_TEST((boxes_of(job.source.layout, key, Rank{rank}) == boxes_of(side, key, Rank{rank})), layout.to_string());
    }
  }
}

BOOST_AUTO_TEST_CASE(a_stage_has_its_tensors_alone) {
  const JobLayout side = staged(
      4, {{{Rank{0}, Rank{1}}, {tensor("a", {6}, Layout::replicated()), tensor("tied", {6}, Layout::chunk(0, 2))}},
          {{Rank{2}, Rank{3}},
           {tensor("b", {6}, Layout::on_ranks(Layout::chunk(0, 2), Rank{2}, 2)),
            tensor("tied", {6}, Layout::on_ranks(Layout::chunk(0, 2), Rank{2}, 2))}}});
  const Case job = read_again(published(side).to_case());
  for (const char* fqn : {"a", "b", "tied"}) {
    for (int rank = 0; rank < 4; ++rank) {
      const TensorKey key{fqn, "exp_avg"};
      BOOST_TEST((boxes_of(job.source.layout, key, Rank{rank}) == boxes_of(side, key, Rank{rank})), fqn << rank);
      BOOST_TEST((boxes_of(job.target.layout, key, Rank{rank}) == boxes_of(side, key, Rank{rank})), fqn << rank);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_rank_without_a_publication_is_lost_in_the_source_and_restored_in_the_target) {
  const Layout rows = Layout::chunk(0, 2);
  const Case job = read_again(published(staged(2, {{{Rank{0}}, {tensor("w", {8}, rows)}}})).to_case());
  BOOST_TEST((job.source.lost == std::vector<Rank>{Rank{1}}));
  BOOST_TEST((boxes_of(job.target.layout, {"w", "exp_avg"}, Rank{1}) == std::vector<Box>{Box{{4}, {4}}}));
}

BOOST_AUTO_TEST_CASE(the_target_wants_its_tensors_in_its_layouts) {
  const Inventory found = published(JobLayout::uniform(
      2, {tensor("w", {6, 4}, Layout::chunk(0, 2)), tensor("of the sources alone", {3}, Layout::replicated())}));
  const Case job = read_again(found.to_case(
      JobLayout::uniform(3, {tensor("w", {6, 4}, Layout::chunk(1, 3)), tensor("new", {6}, Layout::replicated())})));
  BOOST_TEST(job.name == "step 7");
  BOOST_TEST(job.tensors == 1U);
  BOOST_TEST((first_of(job.source).layout == Layout::chunk(0, 2)));
  BOOST_TEST((first_of(job.target).layout == Layout::chunk(1, 3)));
  BOOST_TEST(job.source.ranks == 2);
  BOOST_TEST(job.target.ranks == 3);
}

// As FSDP over tensor parallelism has parameters that the latter leaves whole.
BOOST_AUTO_TEST_CASE(the_target_has_what_each_rank_wants_in_layouts_of_its_own) {
  const Inventory found = published(JobLayout::uniform(4, {tensor("w", {8}, Layout::chunk(0, 4))}));
  const auto half = [](int first) {
    return tensor("w", {8}, Layout::on_ranks(Layout::chunk(0, 2), {Rank{first}, Rank{first + 2}}));
  };
  const JobLayout wanted = staged(4, {{{Rank{0}, Rank{2}}, {half(0)}}, {{Rank{1}, Rank{3}}, {half(1)}}});
  const Case job = read_again(found.to_case(wanted));
  for (int rank = 0; rank < 4; ++rank) {
    const TensorKey key{"w", "exp_avg"};
    BOOST_TEST(boxes_of(wanted, key, Rank{rank}).size() == 1U);
    BOOST_TEST((boxes_of(job.target.layout, key, Rank{rank}) == boxes_of(wanted, key, Rank{rank})), rank);
  }
}

BOOST_AUTO_TEST_CASE(a_rank_in_no_section_of_the_target_wants_nothing) {
  const Inventory found = published(JobLayout::uniform(2, {tensor("w", {8}, Layout::replicated())}));
  const Case job = read_again(found.to_case(staged(2, {{{Rank{0}}, {tensor("w", {8}, Layout::replicated())}}})));
  BOOST_TEST((boxes_of(job.target.layout, {"w", "exp_avg"}, Rank{0}) == std::vector<Box>{Box{{0}, {8}}}));
  BOOST_TEST(boxes_of(job.target.layout, {"w", "exp_avg"}, Rank{1}).empty());
}

BOOST_AUTO_TEST_CASE(a_catalog_has_its_layouts_on_both_sides) {
  std::vector<float> memory(32);
  Catalog wanted(Rank{0}, 3);
  wanted.add({{"w", "exp_avg"}, DType::f32, {6, 4}}, Layout::chunk(1, 3), View{.data = memory.data()});
  wanted.add({{"new", "exp_avg"}, DType::f32, {6}}, Layout::replicated(), View{.data = memory.data()}, Absent::zero);
  const Case job = read_again(wanted.to_case());
  BOOST_TEST(job.tensors == 2U);
  BOOST_TEST((first_of(job.source).layout == Layout::chunk(1, 3)));
  BOOST_TEST((first_of(job.target).layout == Layout::chunk(1, 3)));
}

BOOST_AUTO_TEST_CASE(a_parameter_is_found_under_its_other_names) {
  Inventory found = published(JobLayout::uniform(2, {tensor("embed", {8}, Layout::chunk(0, 2))}));
  Manifest manifest = *found.held.sections[0].manifest;
  manifest.aliases = {{"head", "embed"}};
  found.held.sections[0].manifest = std::make_shared<const Manifest>(manifest);
  const JobLayout wanted = JobLayout::uniform(1, {tensor("head", {8}, Layout::replicated())});
  BOOST_TEST(first_of(read_again(found.to_case(wanted)).target).spec.key.fqn == "head");
}

BOOST_AUTO_TEST_CASE(states_have_types_and_shapes_of_their_own) {
  const Layout rows = Layout::chunk(0, 2);
  const Case job = read_again(published(JobLayout::uniform(2, {{{{"w", "absmax"}, DType::f32, {4, 2}}, rows},
                                                               {{{"w", "param"}, DType::bf16, {4, 512}}, rows},
                                                               {{{"w", "step"}, DType::f32, {}}, Layout::replicated()},
                                                               {{{"w", "\"x\""}, DType::u8, {4, 512}}, rows}}))
                                  .to_case());
  BOOST_TEST(job.tensors == 1U);
  BOOST_REQUIRE(job.by_value.size() == 1U);
  BOOST_TEST(job.by_value[0].key.state == "step");
  std::vector<TensorSpec> specs;
  for (const TensorLayout& one : job.source.layout.sections.at(0).manifest->tensors) specs.push_back(one.spec);
  std::ranges::sort(specs, {}, &TensorSpec::key);
  BOOST_TEST((specs == std::vector<TensorSpec>{{{"w", "\"x\""}, DType::u8, {4, 512}},
                                               {{"w", "absmax"}, DType::f32, {4, 2}},
                                               {{"w", "param"}, DType::bf16, {4, 512}}}));
}

BOOST_AUTO_TEST_CASE(sides_that_do_not_fit_are_refused) {
  const auto held = [](Extent elements) {
    return published(JobLayout::uniform(1, {tensor("w", {elements}, Layout::replicated())}));
  };
  const JobLayout wanted = JobLayout::uniform(1, {tensor("w", {8}, Layout::replicated())});
  refused(ErrorCode::layout_mismatch, "w:exp_avg is f32 (4,) and f32 (8,) on the source and the target side",
          [&] { static_cast<void>(held(4).to_case(wanted)); });
  refused(ErrorCode::layout_mismatch, "w:exp_avg", [&] {
    const auto as = [](DType dtype) { return std::vector{tensor("w", {8}, Layout::replicated(), dtype)}; };
    static_cast<void>(held(8).to_case(staged(2, {{{Rank{0}}, as(DType::f32)}, {{Rank{1}}, as(DType::f16)}})));
  });
  refused(ErrorCode::invalid_argument, "section 0 names rank 1 of 1", [&] {
    static_cast<void>(held(8).to_case(staged(1, {{{Rank{1}}, {tensor("w", {8}, Layout::replicated())}}})));
  });
  refused(ErrorCode::invalid_argument, "a tensor that both sides have",
          [&] { static_cast<void>(published({}).to_case(wanted)); });
  refused(ErrorCode::unsupported, "without a name or a state", [] {
    static_cast<void>(published(JobLayout::uniform(1, {tensor("", {4}, Layout::replicated())})).to_case());
  });
}

BOOST_AUTO_TEST_SUITE_END()
