// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/digest.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstring>

#include "memory/each_kernel.hpp"
#include "memory/kernel_choice.hpp"
#include "memory/layouts.hpp"
#include "memory/strided_copy.hpp"
#include "memory/tree_digest.hpp"
#include "support/bytes.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(digest)

using namespace shardwire;
namespace data = boost::unit_test::data;
using memory::digest_box;
using memory::packed;

namespace {

Digest128 hash_of(const void* data, std::size_t size) {
  const XXH128_hash_t hash = XXH3_128bits(data, size);
  return {hash.low64, hash.high64};
}

/// As tree_digest.hpp defines it.
Digest128 of_row_major(const std::vector<std::byte>& bytes) {
  std::vector<Digest128> leaves;
  for (std::size_t at = 0; at < bytes.size(); at += memory::leaf_bytes) {
    leaves.push_back(hash_of(bytes.data() + at, std::min<std::size_t>(memory::leaf_bytes, bytes.size() - at)));
  }
  return hash_of(leaves.data(), leaves.size() * sizeof leaves[0]);
}

}  // namespace

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
  // Rows shorter and longer than the in-place limit of hashing, compared with a dense copy of the same elements.
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

BOOST_DATA_TEST_CASE(a_copy_gives_the_digest_of_its_target, data::make({1, 2, 4, 8, 3, 24, 4096}), item_bytes) {
  layouts::Maker maker(test_seed() + static_cast<unsigned>(item_bytes));
  const auto item = static_cast<std::size_t>(item_bytes);
  for (int round = 0; round < layouts::rounds_for(item_bytes, 200); ++round) {
    const Box box = maker.box(maker.below(layouts::dims_for(item_bytes) + 1));
    const PlacedBox source = maker.place(box);
    const PlacedBox target = maker.below(3) == 0 ? packed(box) : maker.place(box);
    const auto from = maker.bytes(layouts::extent_of(source) * item + 1);
    for (const memory::Stores stores : {memory::Stores::cached, memory::Stores::streaming}) {
      auto to = maker.bytes(layouts::extent_of(target) * item + 3);
      auto expected = to;
      memory::StridedCopy(box, source, target, item).run_all(from.data() + 1, expected.data() + 3);
      double seconds = 0;
      const Digest128 given =
          memory::copy_and_digest(box, source, target, item, from.data() + 1, to.data() + 3, stores, seconds);
      BOOST_REQUIRE(test::same_bytes(to, expected));
      BOOST_REQUIRE(given == digest_box(box, target, to.data() + 3, item));
      BOOST_REQUIRE(given == digest_box(box, source, from.data() + 1, item));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_copy_in_batches_gives_the_same_digest) {
  // Runs below, at and above every limit, with more bytes than a batch has; one run longer than any batch.
  layouts::Maker maker(test_seed());
  struct Rows {
    Extent rows, bytes;
  };
  for (const Rows r : {Rows{9000, 1},
                       {20000, 64},
                       {5000, 255},
                       {5000, 512},
                       {1001, 2048},
                       {200, 7169},
                       {80, 16384},
                       {70, 65537},
                       {3, 1 << 20},
                       {2, (1 << 20) + 1},
                       {1, (3 << 20) + 5}}) {
    const Box box{{0, 0}, {r.rows, r.bytes}};
    const PlacedBox strided{box, 1, {r.bytes + 64, 1}};
    const std::size_t most = static_cast<std::size_t>(r.rows * (r.bytes + 64)) + 1;
    const auto from = maker.bytes(most);
    const Digest128 expected = digest_box(box, strided, from.data(), 1);
    for (const memory::Stores stores : {memory::Stores::cached, memory::Stores::streaming}) {
      for (const PlacedBox& target : {strided, packed(box)}) {
        std::vector<std::byte> to(most);
        double seconds = 0;
        BOOST_CHECK(memory::copy_and_digest(box, strided, target, 1, from.data(), to.data(), stores, seconds) ==
                    expected);
        BOOST_CHECK_GT(seconds, 0);
        BOOST_CHECK(digest_box(box, target, to.data(), 1) == expected);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(each_kernel_gives_the_same_digest) {
  const auto from = test::numbered_bytes(3 << 20);
  for (const memory::CopyKernel& kernel : memory::copy_kernels()) {
    if (!kernel.has_feature()) continue;  // the kernels' own tests report it
    memory::kernel_choice().force(kernel.name);
    for (const Extent run : {128, 511, 512, 1000, 16384, 16385, 70001, (1 << 20) + 3}) {
      for (const Extent first : {0, 1, 64}) {
        const Box box{{0, 0}, {std::max<Extent>(2, 300'000 / run), run}};
        const PlacedBox strided{box, first, {run + 128, 1}};
        const std::size_t size = layouts::extent_of(strided);
        std::vector<std::byte> to(size + 64, std::byte{0xa5});
        auto expected = to;
        memory::StridedCopy(box, strided, strided, 1).run_all(from.data(), expected.data());
        double seconds = 0;
        const Digest128 given = memory::copy_and_digest(box, strided, strided, 1, from.data(), to.data(),
                                                        memory::Stores::streaming, seconds);
        BOOST_REQUIRE_MESSAGE(given == digest_box(box, strided, from.data(), 1), kernel.name << ", runs of " << run);
        BOOST_REQUIRE_MESSAGE(std::memcmp(to.data(), expected.data(), to.size()) == 0,
                              kernel.name << ", runs of " << run);
      }
    }
  }
  memory::kernel_choice().force("");
}

BOOST_AUTO_TEST_CASE(what_is_digested_is_what_was_stored_while_the_source_changes) {
  constexpr std::size_t size = 1 << 20;
  void* pages = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  BOOST_REQUIRE(pages != MAP_FAILED);
  auto* const source = static_cast<std::byte*>(pages);
  const pid_t writer = ::fork();
  if (writer == 0) {
    for (std::uint8_t value = 0;; ++value) std::memset(source, value, size);
  }
  BOOST_REQUIRE(writer > 0);
  int mixed = 0;
  for (const memory::CopyKernel& kernel : memory::copy_kernels()) {
    if (!kernel.has_feature()) continue;
    memory::kernel_choice().force(kernel.name);
    for (int round = 0; round < 20; ++round) {
      for (const Extent run : {700, 1 << 18}) {
        const Box box{{0, 0}, {static_cast<Extent>(size) / (run + 37), run}};
        const PlacedBox strided{box, 1, {run + 37, 1}};
        std::vector<std::byte> target(static_cast<std::size_t>(box.volume()));
        double seconds = 0;
        const Digest128 given = memory::copy_and_digest(box, strided, packed(box), 1, source, target.data(),
                                                        memory::Stores::streaming, seconds);
        BOOST_CHECK_MESSAGE(given == digest_box(box, packed(box), target.data(), 1), kernel.name);
        mixed += target.front() != target.back();
      }
    }
  }
  memory::kernel_choice().force("");
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  ::munmap(pages, size);
  BOOST_TEST(mixed > 0);  // the source did change meanwhile
}

BOOST_AUTO_TEST_CASE(a_copy_of_nothing_has_the_digest_of_nothing) {
  const Box none{{2, 0}, {0, 3}};
  const PlacedBox placed = packed({{0, 0}, {4, 3}});
  double seconds = 0;
  BOOST_CHECK(memory::copy_and_digest(none, placed, packed(none), 4, nullptr, nullptr, memory::Stores::streaming,
                                      seconds) == of_row_major({}));
}

BOOST_AUTO_TEST_SUITE_END()
