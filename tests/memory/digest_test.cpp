// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/digest.hpp"

#include <xxhash.h>

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "memory/layouts.hpp"
#include "memory/strided_copy.hpp"
#include "support/seed.hpp"

using namespace shardwire;
using memory::Digest128;
using memory::digest_box;
using memory::packed;

namespace {

Digest128 of_row_major(const std::vector<std::byte>& bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(digest)

BOOST_AUTO_TEST_CASE(any_layout_gives_the_digest_of_the_row_major_bytes) {
  layouts::Maker maker(test_seed());
  for (int round = 0; round < 300; ++round) {
    const Box box = maker.box(maker.below(max_dims + 1));
    const PlacedBox placed = maker.place(box);
    const std::size_t item = std::size_t{1} << maker.below(4);
    const auto buffer = maker.bytes(layouts::extent_of(placed) * item + 1);
    std::vector<std::byte> dense;
    for (const std::size_t element : layouts::elements_of(box, placed)) {
      const auto first = buffer.begin() + 1 + static_cast<std::ptrdiff_t>(element * item);
      dense.insert(dense.end(), first, first + static_cast<std::ptrdiff_t>(item));
    }
    BOOST_CHECK(digest_box(box, placed, buffer.data() + 1, item) == of_row_major(dense));
  }
}

BOOST_AUTO_TEST_CASE(the_length_of_the_runs_does_not_matter) {
  layouts::Maker maker(test_seed());
  // Rows shorter and longer than what is hashed in place, next to a dense copy of the same elements.
  for (const Extent columns : {1, 7, 255, 256, 257, 1023, 1024, 1025, 5000}) {
    const Box box{{0, 0}, {9, columns}};
    const PlacedBox padded{box, 2, {columns + 3, 1}};
    const auto buffer = maker.bytes(layouts::extent_of(padded) * 4);
    std::vector<std::byte> dense(static_cast<std::size_t>(box.volume()) * 4);
    memory::StridedCopy(box, padded, packed(box), 4).run_all(buffer.data(), dense.data());
    BOOST_CHECK(digest_box(box, padded, buffer.data(), 4) == of_row_major(dense));
    BOOST_CHECK(digest_box(box, packed(box), dense.data(), 4) == of_row_major(dense));
  }
}

BOOST_AUTO_TEST_CASE(one_bit_anywhere_changes_the_digest) {
  layouts::Maker maker(test_seed());
  const Box box{{0, 0}, {3, 5}};
  auto buffer = maker.bytes(15);
  const Digest128 before = digest_box(box, packed(box), buffer.data(), 1);
  for (std::byte& byte : buffer) {
    byte ^= std::byte{1};
    BOOST_CHECK(digest_box(box, packed(box), buffer.data(), 1) != before);
    byte ^= std::byte{1};
  }
}

BOOST_AUTO_TEST_CASE(padding_does_not_count) {
  const Box box{{0, 0}, {2, 2}};
  const PlacedBox padded{box, 1, {3, 1}};
  std::byte buffer[6] = {};
  const Digest128 before = digest_box(box, padded, buffer, 1);
  buffer[0] = buffer[3] = std::byte{9};
  BOOST_CHECK(digest_box(box, padded, buffer, 1) == before);
}

BOOST_AUTO_TEST_CASE(an_empty_box_has_the_digest_of_nothing) {
  const Box none{{0}, {0}};
  BOOST_CHECK(digest_box(none, packed(none), nullptr, 4) == of_row_major({}));
}

BOOST_AUTO_TEST_SUITE_END()
