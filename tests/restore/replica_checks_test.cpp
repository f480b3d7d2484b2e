// SPDX-License-Identifier: Apache-2.0
// The boxes of replicas that are compared, and the error for those that differ.
#include "restore/replica_checks.hpp"

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

BOOST_AUTO_TEST_SUITE(replica_checks)

using namespace shardwire;
using restore::boxes_to_compare;
using restore::ComparedBoxes;
using restore::differing_replicas;

namespace {

struct Compared {
  Compared(int holders, const Layout& held, const Extents& shape) {
    const auto tensor = [&](const char* fqn, const Layout& layout) {
      return TensorLayout{{{fqn, "exp_avg"}, DType::f64, shape}, layout};
    };
    planning.from = JobLayout::uniform(holders, {tensor("a", held), tensor("b", held)});
    const JobLayout to = JobLayout::uniform(1, {tensor("a", Layout::replicated()), tensor("b", Layout::replicated())});
    manifest = *to.sections.front().manifest;
    Planner planner(planning.from, to, {}, Replicas::compare);
    planning.plan = planner.plan(Rank{0});
    planning.others = OtherHolders(planner, planning.plan);
    boxes = boxes_to_compare(planning, manifest);
    own.resize(boxes.elements.size());
    for (std::size_t i = 0; i < own.size(); ++i) own[i] = {i, 1};
    for (const auto& held_boxes : boxes.by_holder) {
      std::vector<Digest128>& digests = theirs.emplace_back();
      for (const ComparedBoxes::Held& one : held_boxes) digests.push_back(own[one.element]);
    }
  }
  [[nodiscard]] std::optional<Error> error() const {
    return differing_replicas(boxes, own, theirs, planning, manifest, Rank{0});
  }

  restore::Planning planning;
  Manifest manifest;
  ComparedBoxes boxes;
  std::vector<Digest128> own;
  std::vector<std::vector<Digest128>> theirs;
};

}  // namespace

BOOST_AUTO_TEST_CASE(boxes_are_small_disjoint_and_shared_by_replicas) {
  const Extents shape{3, 1 << 20};  // 24 MiB each
  const Compared made(3, Layout::replicated(), shape);
  BOOST_TEST_REQUIRE(made.boxes.by_holder.size() == 2U);
  ElementCount elements = 0;
  for (const ComparedBoxes::Element& one : made.boxes.elements) {
    BOOST_TEST(one.box.volume() * 8 <= ElementCount{4} << 20);
    elements += one.box.volume();
  }
  BOOST_TEST(elements == 2 * 3 * (ElementCount{1} << 20));
  for (const auto& held : made.boxes.by_holder) BOOST_TEST(held.size() == made.boxes.elements.size());
  for (std::size_t i = 0; i < made.boxes.elements.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      const auto &a = made.boxes.elements[i], &b = made.boxes.elements[k];
      if (a.piece == b.piece) BOOST_TEST(!intersect(a.box, b.box));
    }
  }
}

BOOST_AUTO_TEST_CASE(equal_digests_are_no_error) {
  BOOST_TEST(!Compared(4, Layout::replicated(), {4, 4}).error());
}

BOOST_AUTO_TEST_CASE(an_error_names_tensor_box_and_ranks) {
  Compared made(4, Layout::replicated(), {4, 6});
  made.theirs[1][1].low ^= 1;  // rank 2
  made.theirs[2][1].high ^= 1;
  const auto error = made.error();
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ErrorCode::layout_mismatch));
  BOOST_TEST(!error->retryable());
  BOOST_TEST((error->ranks() == std::vector<Rank>{Rank{2}, Rank{3}}));
  BOOST_TEST(std::string(error->what()) ==
             "replicas differ: b:exp_avg [0:4, 0:6] of source ranks 2, 3 is not equal to that of source rank 0");
  BOOST_TEST_REQUIRE(error->gaps().size() == 1U);
  BOOST_TEST(error->gaps().front().fqn == "b");
  BOOST_TEST((error->gaps().front().box == Box{{0, 0}, {4, 6}}));
}

BOOST_AUTO_TEST_CASE(an_error_counts_boxes_and_tensors_and_lists_all_ranks) {
  Compared made(4, Layout::mesh({2, 2}, {Replicate{}, Shard{0}}), {4, 6});
  BOOST_TEST_REQUIRE(made.theirs.size() == 2U);  // ranks 2 and 3
  for (auto& digests : made.theirs) {
    for (Digest128& one : digests) one.low ^= 8;
  }
  const auto error = made.error();
  BOOST_TEST_REQUIRE(error.has_value());
  BOOST_TEST((error->ranks() == std::vector<Rank>{Rank{2}, Rank{3}}));
  BOOST_TEST(error->gaps().size() == 4U);
  BOOST_TEST(std::string(error->what()) ==
             "replicas differ: a:exp_avg [0:2, 0:6] of source rank 2 is not equal to that of source rank 0; 4 boxes of "
             "2 tensors differ");
}

BOOST_AUTO_TEST_SUITE_END()
