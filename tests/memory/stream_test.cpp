// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <algorithm>
#include <array>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <random>
#include <vector>

#include "memory/strided_copy.hpp"
#include "support/seed.hpp"

using namespace shardwire;
namespace data = boost::unit_test::data;

namespace {

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131) ^ (i >> 8));
  return bytes;
}

void check_both_stores(const Box& box, const PlacedBox& source, const PlacedBox& target, std::size_t first_byte) {
  const auto end = [](const PlacedBox& side) {
    return static_cast<std::size_t>(side.local_offset + side.box.size[0] * side.local_strides[0]);
  };
  const auto from = numbered(end(source) + 64);
  std::vector<std::byte> cached(end(target) + 128);
  std::vector<std::byte> streamed(cached.size());
  // From the start of a line: runs of whole lines may be treated in a way of their own.
  const auto to_line = [&](std::vector<std::byte>& bytes) {
    return bytes.data() + -reinterpret_cast<std::uintptr_t>(bytes.data()) % 64 + first_byte;
  };
  const memory::StridedCopy copy(box, source, target, 1);
  const auto bytes = static_cast<std::size_t>(end(target));
  copy.run_all(from.data(), to_line(cached), memory::Stores::cached);
  copy.run_all(from.data(), to_line(streamed), memory::Stores::streaming);
  BOOST_TEST((std::equal(to_line(cached), to_line(cached) + bytes, to_line(streamed))));
  BOOST_TEST((cached != std::vector<std::byte>(cached.size())));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(stream)

BOOST_DATA_TEST_CASE(copies_exactly_its_range_at_any_alignment, data::make({0, 1, 15, 63, 64, 65, 127, 1024, 4099}),
                     size) {
  constexpr std::size_t margin = 128;
  const auto length = static_cast<std::size_t>(size);
  const auto source = numbered(length + 2 * margin);
  for (std::size_t to = 0; to < 64; to += 7) {
    for (std::size_t from = 0; from < 64; from += 9) {
      std::vector<std::byte> target(length + 2 * margin, std::byte{0xa5});
      memory::RangeCopier streamer(memory::Stores::streaming);
      streamer.add(target.data() + to, source.data() + from, length);
      streamer.finish();
      for (std::size_t i = 0; i < target.size(); ++i) {
        const bool inside = i >= to && i < to + length;
        BOOST_REQUIRE(target[i] == (inside ? source[from + i - to] : std::byte{0xa5}));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(ranges_of_any_number_and_length_are_copied_once_each) {
  // From none to more than are under way at once, among them some that are cut, and one object for all of them.
  std::mt19937_64 random(test_seed());
  memory::RangeCopier streamer(memory::Stores::streaming);
  for (std::size_t count = 0; count <= 40; ++count) {
    const auto source = numbered(count * 80000 + 64);
    std::vector<std::byte> target(source.size(), std::byte{0xa5});
    std::vector<std::byte> expected = target;
    std::size_t at = 0;
    for (std::size_t range = 0; range < count; ++range) {
      constexpr std::array<std::size_t, 8> about{1, 64, 65, 600, 4000, 7168, 17000, 70000};
      const std::size_t size = 1 + random() % about[random() % about.size()];
      at += random() % 200;
      const std::size_t from = random() % (source.size() - size);
      streamer.add(target.data() + at, source.data() + from, size);
      std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(at));
      at += size;
    }
    streamer.finish();
    BOOST_REQUIRE_MESSAGE(target == expected, count << " ranges");
  }
}

BOOST_AUTO_TEST_CASE(a_strided_copy_gives_the_same_bytes_with_either_stores) {
  for (const Extent run :
       {Extent{64}, Extent{128}, Extent{256}, Extent{300}, Extent{512}, Extent{1300}, Extent{20000}}) {
    for (const Extent gap : {0, 64, 200}) {
      for (const std::size_t first_byte : {0, 1}) {
        const Box box{{3, 500}, {40, run}};
        const PlacedBox source{Box{{0, 0}, {60, run + 700}}, 0, {run + 700, 1}};
        const PlacedBox target{box, 0, {run + gap, 1}};
        check_both_stores(box, source, target, first_byte);
        check_both_stores(box, target, source, first_byte);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
