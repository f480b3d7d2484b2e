// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>
#include <cstring>

#include "case/values.hpp"
#include "perf/measure/value_box.hpp"

BOOST_AUTO_TEST_SUITE(element_values)

namespace {

using namespace shardwire;

std::string hex_of(const std::byte* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(bytes[i]) >> 4];
    text += "0123456789abcdef"[std::to_integer<unsigned>(bytes[i]) & 15];
  }
  return text;
}

std::string first_two(std::uint64_t generation) {
  Bytes memory(8);
  ElementValues({{"w", "exp_avg"}, DType::f32, {2}}, generation).fill({{{0}, {2}}, 0, {1}}, memory.data());
  return hex_of(memory.data(), 8);
}

// One for each way in which elements are made, and the rest of the types.
constexpr DType all_dtypes[] = {
    DType::f64,        DType::f32,    DType::f16, DType::bf16,       DType::f8e4m3,    DType::f8e5m2,
    DType::i64,        DType::i32,    DType::i16, DType::i8,         DType::u8,        DType::boolean,
    DType::u64,        DType::u32,    DType::u16, DType::complex128, DType::complex64, DType::f8e4m3fnuz,
    DType::f8e5m2fnuz, DType::f8e8m0, opaque(3),  opaque(8),         opaque(17)};

}  // namespace

BOOST_AUTO_TEST_CASE(follow_the_published_check_values) {
  BOOST_TEST(first_two(0) == "3f449f4162039608");
  BOOST_TEST(first_two(1) == "0a90abb3428be8ee");
}

BOOST_AUTO_TEST_CASE(of_a_part_are_those_of_the_whole) {
  for (const DType dtype : all_dtypes) {
    const std::size_t item = item_size(dtype);
    const Extents shape{3, 4, 5};
    const ElementValues values({{"w", "m"}, dtype, shape}, 7);
    Bytes whole(60 * item);
    values.fill({{{0, 0, 0}, shape}, 0, row_major_strides(shape)}, whole.data());
    for (std::size_t i = 0; i < 60; ++i) {
      const std::uint64_t number = values.number_at(i);
      BOOST_TEST(std::memcmp(&number, &whole[i * item], std::min(item, sizeof number)) == 0);
    }
    // A box in the middle, with a gap before it and between its local rows.
    const PlacedBox part{{{1, 1, 1}, {2, 2, 3}}, 2, {16, 6, 1}};
    Bytes local(64 * item);
    values.fill(part, local.data());
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t j = 0; j < 2; ++j) {
        for (std::size_t k = 0; k < 3; ++k) {
          const std::size_t at = (2 + i * 16 + j * 6 + k) * item;
          BOOST_TEST(std::memcmp(&local[at], &whole[((i + 1) * 20 + (j + 1) * 5 + k + 1) * item], item) == 0);
        }
      }
    }
    BOOST_TEST(std::memcmp(local.data(), Bytes(2 * item).data(), 2 * item) == 0);  // the rest is unchanged
    ValueCheck check;
    values.check(part, local.data(), check);
    BOOST_TEST(check.elements == 12);
    BOOST_TEST(check.wrong == 0);
  }
}

// Runs the kernels' own code, one thread after the other.
BOOST_AUTO_TEST_CASE(of_a_device_are_those_of_the_host) {
  constexpr std::uint32_t threads = 3;
  for (const DType dtype : all_dtypes) {
    const std::size_t item = item_size(dtype);
    const ElementValues values({{"w", "m"}, dtype, {30, 40, 50}}, 3);
    // The first takes more than one chunk.
    const std::vector<PlacedBox> parts{{{{0, 1, 1}, {29, 20, 49}}, 2, {1200, 50, 1}},
                                       {{{29, 2, 3}, {1, 5, 6}}, 34'900, {30, 6, 1}},
                                       {{{29, 2, 3}, {0, 5, 6}}, 34'990, {30, 6, 1}}};
    for (const bool complement : {false, true}) {
      Bytes host(35'000 * item);
      Bytes device(35'000 * item);
      std::vector<memory::ValueBox> boxes;
      for (const PlacedBox& part : parts) {
        complement ? values.fill_complement(part, host.data()) : values.fill(part, host.data());
        boxes.push_back(perf::value_box(values, part, device.data(), complement));
      }
      const memory::ValueTable table(boxes);
      BOOST_TEST(table.view().chunks() == 5);
      const auto each = [&](auto&& work) {
        std::uint64_t sum = 0;
        for (std::uint64_t chunk = 0; chunk < table.view().chunks(); ++chunk) {
          for (std::uint32_t thread = 0; thread < threads; ++thread) sum += work(chunk, thread);
        }
        return sum;
      };
      const auto wrong = [&] {
        return each([&](std::uint64_t chunk, std::uint32_t thread) {
          return memory::count_wrong_of_chunk(table.view(), chunk, thread, threads);
        });
      };
      each([&](std::uint64_t chunk, std::uint32_t thread) {
        return memory::fill_chunk(table.view(), chunk, thread, threads), 0;
      });
      BOOST_TEST((device == host));
      BOOST_TEST(wrong() == 0);
      for (const std::size_t at : {std::size_t{2}, std::size_t{34'929}}) device[at * item] ^= std::byte{0x10};
      BOOST_TEST(wrong() == 2);
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_of_one_element_and_zero_dims_work) {
  const ElementValues column({{"w", "m"}, DType::f32, {4, 1}}, 0);
  Bytes memory(16);
  const PlacedBox placed{{{0, 0}, {4, 1}}, 0, {1, 1}};
  column.fill(placed, memory.data());
  ValueCheck check;
  column.check(placed, memory.data(), check);
  BOOST_TEST(check.elements == 4);
  const ElementValues scalar({{"s", "m"}, DType::f32, {}}, 0);
  scalar.fill({{}, 0, {}}, memory.data());
  scalar.check({{}, 0, {}}, memory.data(), check);
  BOOST_TEST(check.elements == 5);
  BOOST_TEST(check.wrong == 0);
  const PlacedBox nothing{{{0, 0}, {0, 1}}, 0, {1, 1}};
  column.check(nothing, memory.data(), check);
  BOOST_TEST(check.elements == 5);
}

BOOST_AUTO_TEST_CASE(a_complement_is_wrong_everywhere) {
  for (const DType dtype : all_dtypes) {
    const ElementValues values({{"w", "m"}, dtype, {4, 6}}, 3);
    const PlacedBox placed{{{0, 0}, {4, 6}}, 0, {6, 1}};
    Bytes memory(24 * item_size(dtype));
    values.fill_complement(placed, memory.data());
    ValueCheck check;
    values.check(placed, memory.data(), check);
    BOOST_TEST(check.wrong == 24);
  }
}

BOOST_AUTO_TEST_CASE(a_wrong_element_is_named) {
  const ElementValues values({{"w", "m"}, DType::f32, {4, 6}}, 0);
  const PlacedBox placed{{{0, 2}, {4, 3}}, 0, {3, 1}};
  Bytes memory(48);
  values.fill(placed, memory.data());
  memory[4 * 4 + 1] ^= std::byte{1};
  memory[4 * 7] ^= std::byte{1};
  ValueCheck check;
  values.check(placed, memory.data(), check);
  BOOST_TEST(check.wrong == 2);
  BOOST_REQUIRE(check.first.has_value());
  BOOST_CHECK(check.first->index == (Extents{1, 3}));
  BOOST_TEST(hex_of(check.first->found.data(), 4) == hex_of(&memory[16], 4));
  BOOST_TEST(to_string(*check.first).find("w:m (1, 3) is ") == 0);
}

BOOST_AUTO_TEST_SUITE_END()
