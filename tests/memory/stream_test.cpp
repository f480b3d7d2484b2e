// SPDX-License-Identifier: Apache-2.0
#include "memory/stream.hpp"

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <vector>

#include "memory/strided_copy.hpp"

using namespace shardwire;
namespace data = boost::unit_test::data;

namespace {

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>((i * 131) ^ (i >> 8));
  return bytes;
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
      memory::stream(target.data() + to, source.data() + from, length);
      memory::stream_fence();
      for (std::size_t i = 0; i < target.size(); ++i) {
        const bool inside = i >= to && i < to + length;
        BOOST_REQUIRE(target[i] == (inside ? source[from + i - to] : std::byte{0xa5}));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_strided_copy_gives_the_same_bytes_with_either_stores) {
  // Rows of 1300 bytes out of rows of 2000 into rows of 1500: long enough to be streamed, aligned nowhere.
  const Box box{{3, 500}, {20, 1300}};
  const PlacedBox source{Box{{0, 0}, {40, 2000}}, 0, {2000, 1}};
  const PlacedBox target{Box{{3, 400}, {20, 1500}}, 1, {1500, 1}};
  const auto from = numbered(40 * 2000);
  std::vector<std::byte> cached(20 * 1500 + 1);
  std::vector<std::byte> streamed(cached.size());
  const memory::StridedCopy copy(box, source, target, 1);
  BOOST_REQUIRE_GE(copy.run_bytes(), memory::least_streamed_bytes);
  copy.run_all(from.data(), cached.data(), memory::Stores::cached);
  copy.run_all(from.data(), streamed.data(), memory::Stores::streaming);
  BOOST_TEST((cached == streamed));
  BOOST_TEST((cached != std::vector<std::byte>(cached.size())));
}

BOOST_AUTO_TEST_SUITE_END()
