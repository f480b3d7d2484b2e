// SPDX-License-Identifier: Apache-2.0
// Places for a copy of all that a rank holds.
#include "catalog/copied_rank.hpp"

#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "geometry/placed_boxes.hpp"

BOOST_AUTO_TEST_SUITE(copied_rank)

using namespace shardwire;

namespace {

/// No two tensors have an element in one place.
void require_apart(const Manifest& manifest, Rank rank, const CopiedRank& copy) {
  std::vector<bool> taken(copy.bytes);
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i) {
    const auto& [spec, layout] = manifest.tensors[i];
    if (copy.tensors[i].size_bytes == 0) continue;
    BOOST_REQUIRE(copy.tensors[i].offset_bytes + copy.tensors[i].size_bytes <= copy.bytes);
    for (const PlacedBox& one : layout.boxes_of(spec.shape, rank)) {
      for (ElementCount element = 0; element < one.box.volume(); ++element) {
        ElementCount rest = element;
        ElementCount at = one.local_offset;
        for (std::size_t dim = one.box.dims(); dim-- > 0;) {
          at += rest % one.box.size[dim] * one.local_strides[dim];
          rest /= one.box.size[dim];
        }
        for (ByteCount byte = 0; byte < item_size(spec.dtype); ++byte) {
          const auto place = copy.tensors[i].offset_bytes + static_cast<ByteCount>(at) * item_size(spec.dtype) + byte;
          BOOST_REQUIRE(!taken.at(place));
          taken[place] = true;
        }
      }
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_CASE(dense_tensors_lie_one_after_the_other_and_single_elements_nowhere) {
  const Manifest manifest{4,
                          {{{{"w", "m"}, DType::f32, {10, 3}}, Layout::chunk(0, 4)},
                           {{{"step", "step"}, DType::f32, {1}}, Layout::replicated()},
                           {{{"b", "m"}, DType::bf16, {5}}, Layout::chunk(0, 4)}}};
  const CopiedRank first = places_for_copy(manifest, Rank{0});
  BOOST_TEST(first.tensors[0].size_bytes == 36U);
  BOOST_TEST(first.tensors[1].size_bytes == 0U);
  BOOST_TEST(first.tensors[2].offset_bytes == 64U);
  BOOST_TEST(first.bytes == 128U);
  require_apart(manifest, Rank{0}, first);
  // Rank 3 of 4 holds one row of ten, and nothing of five.
  const CopiedRank last = places_for_copy(manifest, Rank{3});
  BOOST_TEST(last.tensors[0].size_bytes == 12U);
  BOOST_TEST(last.tensors[2].size_bytes == 0U);
  std::vector<std::byte> buffer(last.bytes);
  const Catalog catalog = catalog_of_copy(manifest, Rank{3}, last, buffer.data());
  BOOST_TEST(catalog.entries().size() == 1U);
  BOOST_TEST((catalog.layout_rank() == Rank{3}));
}

BOOST_AUTO_TEST_CASE(members_of_a_flat_parameter_share_one_buffer) {
  const std::vector<FlatMember> members{{{7, 5}}, {{11}}, {{4, 4}}};
  const std::vector<Layout> layouts = Layout::flat(members, 3);
  Manifest manifest{3, {}};
  for (const char* state : {"exp_avg", "exp_avg_sq"}) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      manifest.tensors.push_back({{{"p" + std::to_string(i), state}, DType::f32, members[i].shape}, layouts[i]});
    }
  }
  for (int rank = 0; rank < 3; ++rank) {
    const CopiedRank copy = places_for_copy(manifest, Rank{rank});
    require_apart(manifest, Rank{rank}, copy);
    // Three members and two states of parts of 21 elements: without sharing, six buffers of 128 bytes.
    std::set<ByteCount> buffers;
    for (const auto& tensor : copy.tensors) {
      if (tensor.size_bytes > 0) buffers.insert(tensor.offset_bytes);
    }
    BOOST_TEST(buffers.size() == 2U);
    BOOST_TEST(copy.bytes == 2U * 128U);
  }
}

BOOST_AUTO_TEST_CASE(parts_that_interleave_get_buffers_of_their_own) {
  const auto row = [](ElementCount offset) {
    return Layout::boxes(PlacedBoxMap{{Rank{0}, {PlacedBox{{{0, 0}, {4, 2}}, offset, {6, 1}}}}});
  };
  const Manifest manifest{1,
                          {{{{"q", "m"}, DType::f32, {4, 2}}, row(0)},
                           {{{"k", "m"}, DType::f32, {4, 2}}, row(2)},
                           {{{"v", "m"}, DType::f32, {4, 2}}, row(4)}}};
  require_apart(manifest, Rank{0}, places_for_copy(manifest, Rank{0}));
}

BOOST_AUTO_TEST_SUITE_END()
