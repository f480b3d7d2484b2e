// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/tree_digest.hpp"

#include <xxhash.h>

#include <boost/test/unit_test.hpp>

#include "memory/device_copy/copy_table.hpp"
#include "memory/device_copy/leaf.hpp"
#include "memory/digest.hpp"
#include "memory/digest_state.hpp"
#include "memory/host_lanes.hpp"
#include "memory/layouts.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(tree_digest)

using namespace shardwire;
using memory::leaf_bytes;
using memory::packed;
using memory::StridedCopy;
using test::HostLanes;

namespace {

Digest128 flat_of(const void* data, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

/// As tree_digest.hpp defines it.
Digest128 tree_of(const std::vector<std::byte>& bytes) {
  std::vector<std::uint64_t> words;
  for (std::size_t at = 0; at < bytes.size(); at += leaf_bytes) {
    const Digest128 leaf = flat_of(bytes.data() + at, std::min<std::size_t>(leaf_bytes, bytes.size() - at));
    words.push_back(leaf.low);
    words.push_back(leaf.high);
  }
  return flat_of(words.data(), words.size() * sizeof words[0]);
}

std::vector<std::byte> dense(const StridedCopy& copy, const std::byte* source) {
  std::vector<std::byte> bytes;
  bytes.reserve(copy.bytes());
  copy.visit_runs(
      [&](ByteCount from, ByteCount) { bytes.insert(bytes.end(), source + from, source + from + copy.run_bytes()); });
  return bytes;
}

/// Digests computed from a table as kernels do, one warp after the other.
std::vector<Digest128> digests_of(std::span<const memory::DeviceCopy> copies, layouts::Maker& maker) {
  const memory::CopyTable table(copies);
  std::vector<Digest128> leaves(table.size().leaves);
  for (std::uint64_t number = 0; number < leaves.size(); ++number) {
    memory::LeafStream leaf;
    leaf.find(table.view(), number);
    HostLanes lanes(static_cast<unsigned>(maker.below(memory::hash_lanes)));
    leaves[number] = memory::hash_stream(lanes, leaf, leaf.length());
  }
  std::vector<Digest128> roots;
  for (std::uint64_t copy = 0; copy < copies.size(); ++copy) {
    const std::uint64_t first = table.view().first_leaves()[copy];
    const memory::LeafDigests below(leaves.data() + first, table.view().first_leaves()[copy + 1] - first);
    HostLanes lanes;
    roots.push_back(memory::hash_stream(lanes, below, static_cast<std::uint32_t>(below.length())));
  }
  return roots;
}

/// Rows with gaps, of any alignment.
struct Rows {
  Box box;
  PlacedBox placed;
  std::size_t shift;
  std::vector<std::byte> bytes;

  Rows(layouts::Maker& maker, Extent rows, Extent length, Extent gap)
      : box{{0, 0}, {rows, length}},
        placed{box, 0, {length + gap, 1}},
        shift(maker.below(9)),
        bytes(maker.bytes(shift + static_cast<std::size_t>(rows * (length + gap)))) {}
  [[nodiscard]] const std::byte* base() const { return bytes.data() + shift; }
  [[nodiscard]] StridedCopy copy() const { return StridedCopy(box, placed, packed(box), 1); }
};

std::vector<Rows> all_rows(layouts::Maker& maker) {
  std::vector<Rows> all;
  for (const Extent length : {1, 3, 4, 8, 12, 60, 64, 100, 1000, 4096, 65535, 65536, 65537, 200'000}) {
    for (const Extent gap : {0, 1, 4, 8}) {
      const Extent most = 300'000 / length + 1;
      all.emplace_back(maker, 1 + static_cast<Extent>(maker.below(static_cast<std::size_t>(most))), length, gap);
    }
  }
  all.emplace_back(maker, 4, 16384, 0);  // a whole leaf
  all.emplace_back(maker, 0, 10, 0);
  all.emplace_back(maker, 1, 200, 0);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_tree_is_the_digest_of_the_digests_of_its_leaves) {
  layouts::Maker maker(test_seed());
  for (const Rows& rows : all_rows(maker)) {
    const StridedCopy copy = rows.copy();
    const Digest128 expected = tree_of(dense(copy, rows.base()));
    BOOST_REQUIRE(memory::digest_runs(copy, rows.base()) == expected);
    BOOST_REQUIRE(memory::digest_box(rows.box, rows.placed, rows.base(), 1) == expected);
    for (const memory::Stores stores : {memory::Stores::cached, memory::Stores::streaming}) {
      std::vector<std::byte> target(copy.bytes());
      double seconds = 0;
      BOOST_REQUIRE(memory::copy_and_digest(copy, rows.base(), target.data(), stores, seconds) == expected);
      BOOST_REQUIRE(target == dense(copy, rows.base()));
    }
  }
}

BOOST_AUTO_TEST_CASE(pieces_of_any_length_give_the_same) {
  layouts::Maker maker(test_seed());
  const auto bytes = maker.bytes(5 * leaf_bytes + 77);
  for (const std::size_t most : {std::size_t{700}, std::size_t{40'000}, std::size_t{200'000}}) {
    memory::DigestState state;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t part = std::min(maker.below(most), bytes.size() - at);
      state.add(bytes.data() + at, part);
      at += part;
    }
    BOOST_CHECK(state.finish() == tree_of(bytes));
  }
}

BOOST_AUTO_TEST_CASE(no_bytes_are_no_leaves) {
  BOOST_CHECK(memory::DigestState().finish() == flat_of(nullptr, 0));
  BOOST_CHECK_EQUAL(memory::leaves_of(0), 0u);
  BOOST_CHECK_EQUAL(memory::leaves_of(1), 1u);
  BOOST_CHECK_EQUAL(memory::leaves_of(leaf_bytes), 1u);
  BOOST_CHECK_EQUAL(memory::leaves_of(leaf_bytes + 1), 2u);
}

BOOST_AUTO_TEST_CASE(kernels_give_the_digests_of_the_host) {
  layouts::Maker maker(test_seed());
  const std::vector<Rows> all = all_rows(maker);
  std::vector<memory::DeviceCopy> copies;
  copies.reserve(all.size());
  for (const Rows& rows : all) copies.push_back({rows.copy(), rows.base(), nullptr});
  const auto digests = digests_of(copies, maker);
  for (std::size_t i = 0; i < all.size(); ++i) {
    BOOST_CHECK_MESSAGE(digests[i] == memory::digest_runs(copies[i].copy, copies[i].source),
                        copies[i].copy.runs() << " runs of " << copies[i].copy.run_bytes() << " bytes");
  }
}

BOOST_AUTO_TEST_CASE(kernels_follow_any_layout) {
  layouts::Maker maker(test_seed());
  for (int round = 0; round < 150; ++round) {
    const std::size_t item = std::size_t{1} << maker.below(5);
    const Box box = maker.box(maker.below(max_dims + 1));
    const PlacedBox placed = maker.place(box);
    const auto buffer = maker.bytes(layouts::extent_of(placed) * item + 1);
    const memory::DeviceCopy copy{StridedCopy(box, placed, packed(box), item), buffer.data() + round % 2, nullptr};
    const auto digests = digests_of(std::span(&copy, 1), maker);
    BOOST_REQUIRE(digests.front() == memory::digest_runs(copy.copy, copy.source));
  }
}

BOOST_AUTO_TEST_SUITE_END()
