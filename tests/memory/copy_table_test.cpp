// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/device_copy/copy_table.hpp"

#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "memory/device_copy/copy_tile.hpp"
#include "memory/device_copy/value_box.hpp"
#include "memory/layouts.hpp"
#include "support/seed.hpp"
#include "support/splitmix64.hpp"

// The kernels' own code, run on a CPU: one thread after the other, in any order.

using namespace shardwire;
namespace data = boost::unit_test::data;
using memory::CopyTable;
using memory::DeviceCopy;
using memory::packed;
using memory::StridedCopy;
using memory::TableView;
using memory::Tile;

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

BOOST_AUTO_TEST_SUITE(copy_table)

namespace {

/// After this call, reads of these bytes stop a program with the address sanitizer. Requires: `bytes` is a multiple of
/// 8.
void forbid([[maybe_unused]] const std::byte* first, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(first, bytes);
#endif
}
void allow([[maybe_unused]] const std::byte* first, [[maybe_unused]] std::size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(first, bytes);
#endif
}

constexpr std::size_t margin = 64;  // detects writes outside; random values detect it for every byte

/// One copy, its buffers and the target's expected content. Buffers begin at any offset within 16 bytes and end at the
/// last byte that may be accessed, so that sanitizers detect overruns.
struct Buffers {
  std::vector<std::byte> from, to, expected;
  StridedCopy copy;
  std::size_t from_shift, to_shift;

  Buffers(layouts::Maker& maker, const StridedCopy& made)
      : copy(made), from_shift(maker.below(17)), to_shift(maker.below(17)) {
    from = maker.bytes(from_shift + copy.source_span().end);
    to = maker.bytes(margin + to_shift + copy.target_span().end + margin);
    from.shrink_to_fit();
    expected = to;
    copy.run_all(from.data() + from_shift, expected.data() + margin + to_shift);
  }
  DeviceCopy listed() { return {copy, from.data() + from_shift, to.data() + margin + to_shift}; }
};

/// As on a device, block b of n takes tiles b, b + n, b + 2n and so on.
void run(const TableView& table, std::uint64_t blocks, std::uint32_t threads, std::mt19937_64& random) {
  std::vector<std::uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::uint32_t> workers(threads);
  std::iota(workers.begin(), workers.end(), 0);
  for (const std::uint64_t block : order) {
    std::uint64_t copy = 0;
    for (std::uint64_t number = block; number < table.size().tiles; number += blocks) {
      Tile tile;
      memory::find_tile(table, number, copy, tile);
      std::shuffle(workers.begin(), workers.end(), random);
      for (const std::uint32_t worker : workers) memory::copy_tile(tile, worker, threads);
    }
  }
}

void check(std::vector<Buffers>& all, std::uint64_t blocks, std::uint32_t threads) {
  std::vector<DeviceCopy> copies;
  for (Buffers& one : all) copies.push_back(one.listed());
  const CopyTable table(copies);
  // A device reads its own copy of the bytes.
  const std::size_t size = table.bytes().size();
  const auto uploaded = std::make_unique_for_overwrite<std::byte[]>(size);
  std::memcpy(uploaded.get(), table.bytes().data(), size);
  std::mt19937_64 random(test_seed());
  for (const Buffers& one : all) forbid(one.from.data(), one.from_shift / 8 * 8);
  run(table.view(uploaded.get()), blocks, threads, random);
  for (const Buffers& one : all) allow(one.from.data(), one.from_shift);
  for (std::size_t i = 0; i < all.size(); ++i) {
    BOOST_REQUIRE_MESSAGE(all[i].to == all[i].expected, "copy " << i << ": " << all[i].copy.runs() << " runs of "
                                                                << all[i].copy.run_bytes() << " bytes");
  }
}

StridedCopy rows(Extent count, Extent bytes, Extent gap, Extent target_gap) {
  const Box box{{0, 0}, {count, bytes}};
  return StridedCopy(box, {box, 0, {bytes + gap, 1}}, {box, 0, {bytes + target_gap, 1}}, 1);
}

/// How often each byte of each run is written, from the arithmetic alone.
std::uint64_t covered_bytes(const TableView& table) {
  std::uint64_t bytes = 0;
  std::uint64_t copy = 0;
  for (std::uint64_t number = 0; number < table.size().tiles; ++number) {
    Tile tile;
    memory::find_tile(table, number, copy, tile);
    bytes += std::uint64_t{tile.runs} * tile.bytes;
  }
  return bytes;
}

}  // namespace

BOOST_DATA_TEST_CASE(kernels_copy_what_a_strided_copy_does, data::make({1, 2, 4, 8, 3, 16, 24, 4096}), item) {
  layouts::Maker maker(test_seed() + static_cast<unsigned>(item));
  for (int round = 0; round < layouts::rounds_for(item, 60); ++round) {
    std::vector<Buffers> all;
    const std::size_t count = 1 + maker.below(6);
    for (std::size_t i = 0; i < count; ++i) {
      const Box box = maker.box(maker.below(layouts::dims_for(item) + 1));
      const PlacedBox source = maker.place(box);
      const PlacedBox target = maker.below(3) == 0 ? packed(box) : maker.place(box);
      all.emplace_back(maker, StridedCopy(box, source, target, static_cast<ByteCount>(item)));
    }
    check(all, 1 + maker.below(9), 1u << maker.below(10));
  }
}

BOOST_AUTO_TEST_CASE(runs_of_every_length_and_alignment) {
  layouts::Maker maker(test_seed());
  for (const Extent length : {1,  3,   15,  16,  17,  31,   32,   33,   48,    60,    63,    64,    65,    79,     80,
                              96, 127, 128, 500, 512, 1000, 4096, 4100, 20000, 32767, 32768, 32769, 65000, 100'003}) {
    for (int round = 0; round < 12; ++round) {
      std::vector<Buffers> all;
      const auto count = static_cast<Extent>(1 + maker.below(length > 4096 ? 4 : 40));
      all.emplace_back(maker,
                       rows(count, length, static_cast<Extent>(maker.below(20)), static_cast<Extent>(maker.below(20))));
      check(all, 3, 512);
    }
  }
}

BOOST_AUTO_TEST_CASE(many_short_runs_in_several_dims) {
  layouts::Maker maker(test_seed());
  for (const Extent item : {1, 4}) {
    std::vector<Buffers> all;
    const Box box{{0, 0, 0, 0}, {3, 70, 5, 60}};
    const PlacedBox source{box, 0, {70 * 608 + 9, 608, 121, 2}};
    all.emplace_back(maker, StridedCopy(box, source, packed(box), static_cast<ByteCount>(item)));
    all.emplace_back(maker, StridedCopy(box, packed(box), source, static_cast<ByteCount>(item)));
    check(all, 4, 512);
  }
}

BOOST_AUTO_TEST_CASE(thousands_of_copies_in_one_table) {
  layouts::Maker maker(test_seed());
  std::vector<Buffers> all;
  for (int i = 0; i < 4000; ++i) {
    const auto length = static_cast<Extent>(1 + maker.below(200));
    all.emplace_back(maker, rows(static_cast<Extent>(maker.below(5)), length, 8, 0));
  }
  check(all, 264, 64);
}

BOOST_AUTO_TEST_CASE(copies_of_nothing_have_no_tile) {
  layouts::Maker maker(test_seed());
  const CopyTable none({});
  BOOST_CHECK_EQUAL(none.size().tiles, 0u);
  BOOST_CHECK_EQUAL(none.size().copies, 0u);
  const Box empty{{1, 2}, {0, 3}};
  const StridedCopy nothing(empty, packed({{0, 0}, {4, 8}}), packed(empty), 4);
  const DeviceCopy listed{nothing, nullptr, nullptr};
  const CopyTable table(std::span(&listed, 1));
  BOOST_CHECK_EQUAL(table.size().tiles, 0u);
  BOOST_CHECK_EQUAL(table.size().leaves, 0u);
  std::vector<Buffers> all;
  for (const Extent count : {0, 3, 0, 0, 5, 0}) all.emplace_back(maker, rows(count, 10, 1, 2));
  check(all, 2, 32);
}

// The addresses are invented, and nothing accesses them.
BOOST_AUTO_TEST_CASE(runs_of_many_gigabytes_are_dealt_out_once) {
  constexpr Extent huge = (Extent{5} << 30) + 12345;
  const Box one{{0}, {huge}};
  const Box several{{0, 0}, {3, huge}};
  const auto* const source = reinterpret_cast<const std::byte*>(0x7f00'0000'0007);
  auto* const target = reinterpret_cast<std::byte*>(0x7e00'0000'0071);
  const std::vector<DeviceCopy> copies{
      {StridedCopy(one, packed(one), packed(one), 1), source, target},
      {StridedCopy(several, {several, 0, {huge + 1, 1}}, packed(several), 1), source, target}};
  const CopyTable table(copies);
  const TableView view = table.view();
  BOOST_CHECK_EQUAL(covered_bytes(view), 4u * static_cast<std::uint64_t>(huge));

  // Parts are consecutive, and all but the first begin at a cache line.
  std::uint64_t copy = 0;
  std::uint64_t end = 0;
  for (std::uint64_t number = 0; number < view.first_tiles()[1]; ++number) {
    Tile tile;
    memory::find_tile(view, number, copy, tile);
    BOOST_REQUIRE_EQUAL(tile.bytes > 0, tile.runs == 1);
    if (tile.runs == 0) continue;
    const auto begin = static_cast<std::uint64_t>(tile.target - target);
    BOOST_REQUIRE_EQUAL(begin, end);
    BOOST_REQUIRE_EQUAL(static_cast<std::uint64_t>(tile.source - source), begin);
    BOOST_REQUIRE(number == 0 || reinterpret_cast<std::uintptr_t>(tile.target) % 128 == 0);
    BOOST_REQUIRE_LE(tile.bytes, memory::tile_bytes);
    end = begin + tile.bytes;
  }
  BOOST_CHECK_EQUAL(end, static_cast<std::uint64_t>(huge));
}

BOOST_AUTO_TEST_CASE(rows_past_32_bits_are_found) {
  // The last tile of 2^33 runs of 4 bytes.
  const Box box{{0, 0, 0}, {1 << 20, 1 << 13, 1}};
  const PlacedBox source{box, 0, {(1 << 14) + 3, 2, 1}};
  const PlacedBox target{box, 0, {(1 << 14) + 5, 2, 1}};
  const DeviceCopy listed{StridedCopy(box, source, target, 4), nullptr, nullptr};
  const CopyTable table(std::span(&listed, 1));
  BOOST_CHECK_EQUAL(covered_bytes(table.view()), listed.copy.bytes());
  std::uint64_t copy = 0;
  Tile tile;
  memory::find_tile(table.view(), table.size().tiles - 1, copy, tile);
  const auto last = tile.first.offset(tile.runs - 1);
  BOOST_CHECK_EQUAL(last.source + 4, listed.copy.source_span().end);
  BOOST_CHECK_EQUAL(last.target + 4, listed.copy.target_span().end);
}

// More tiles, and larger strides in bytes, than fit into 32 bits. Nothing accesses this memory either.
BOOST_AUTO_TEST_CASE(tiles_past_32_bits_are_found) {
  constexpr Extent row = (Extent{1} << 49) + 5;
  constexpr Extent apart = (Extent{1} << 50) + 3;
  const Box box{{0, 0}, {3, row}};
  auto* const base = reinterpret_cast<std::byte*>(0x1000'0000'0000);
  const std::vector<DeviceCopy> copies{
      {rows(5, 1000, 24, 0), base + 7, base},
      {StridedCopy(box, {box, 0, {apart, 1}}, {box, 0, {apart + 16, 1}}, 1), base + 3, base + 8}};
  const CopyTable table(copies);
  const std::uint64_t tiles = table.size().tiles;
  BOOST_REQUIRE_GT(tiles, std::uint64_t{1} << 34);
  BOOST_CHECK_EQUAL(table.size().leaves, 1 + (3 * static_cast<std::uint64_t>(row) + 65535) / 65536);
  const auto place = [&](std::uint64_t number) {
    Tile tile;
    std::uint64_t copy = 0;
    memory::find_tile(table.view(), number, copy, tile);
    BOOST_REQUIRE_EQUAL(copy, 1U);
    const auto offset = tile.first.offset(0);
    struct Ends {
      std::int64_t source, target, bytes;
    };
    return Ends{tile.source + offset.source - base, tile.target + offset.target - base, tile.bytes};
  };
  const std::uint64_t first = table.view().first_tiles()[1];
  const std::uint64_t of_row = (tiles - first) / 3;
  for (Extent number = 0; number < 3; ++number) {
    const auto begin = place(first + static_cast<std::uint64_t>(number) * of_row);
    BOOST_CHECK_EQUAL(begin.source, 3 + number * apart);
    BOOST_CHECK_EQUAL(begin.target, 8 + number * (apart + 16));
    std::uint64_t last = first + (static_cast<std::uint64_t>(number) + 1) * of_row - 1;
    while (place(last).bytes == 0) --last;
    const auto end = place(last);
    BOOST_CHECK_EQUAL(end.source + end.bytes, 3 + number * apart + row);
    BOOST_CHECK_EQUAL(end.target + end.bytes, 8 + number * (apart + 16) + row);
  }
}

BOOST_AUTO_TEST_CASE(values_past_32_bits_have_their_places) {
  memory::ValueBox box;
  box.first = reinterpret_cast<std::byte*>(0x1000'0000'0000);
  box.index = 11;
  box.dims = 2;
  box.item_bytes = 8;
  constexpr std::uint64_t columns = (std::uint64_t{1} << 33) + 1;
  box.dim[0] = {3, std::uint64_t{1} << 41, std::uint64_t{1} << 44};
  box.dim[1] = {columns, 2, 16};
  box.elements = 3 * columns;
  const auto last = memory::detail::placed_value(box, box.elements - 1);
  BOOST_CHECK_EQUAL(last.place - box.first, (std::int64_t{2} << 44) + 16 * static_cast<std::int64_t>(columns - 1));
  BOOST_CHECK_EQUAL(last.number, support::splitmix64(11 + (std::uint64_t{2} << 41) + 2 * (columns - 1)));
  const memory::ValueTable table({&box, 1});
  const std::uint64_t of_chunk = memory::ValueView::chunk_elements;
  BOOST_CHECK_EQUAL(table.view().chunks(), (box.elements + of_chunk - 1) / of_chunk);
}

BOOST_AUTO_TEST_CASE(division_by_multiplication_is_exact) {
  std::mt19937_64 random(test_seed());
  const auto check = [](std::uint64_t divisor, std::uint64_t n) {
    const memory::SmallDivisor by(divisor);
    BOOST_REQUIRE_MESSAGE(by.quotient(n) == n / divisor, n << " / " << divisor);
  };
  constexpr std::uint64_t excess = memory::SmallDivisor::max_excess;
  for (std::uint64_t divisor = 1; divisor < excess + 3; divisor += 1 + random() % 7) {
    for (const std::uint64_t n : {std::uint64_t{0}, divisor - 1, divisor, divisor + 1, divisor + excess - 1})
      check(divisor, n);
    const std::uint64_t multiple = (divisor + excess - 1) / divisor * divisor;
    check(divisor, multiple);
    check(divisor, multiple - 1);
    check(divisor, random() % (divisor + excess));
  }
  check(std::uint64_t{1} << 40, (std::uint64_t{1} << 40) + excess - 1);
  check(std::uint64_t{1} << 40, (std::uint64_t{1} << 40) - 1);
}

BOOST_AUTO_TEST_SUITE_END()
