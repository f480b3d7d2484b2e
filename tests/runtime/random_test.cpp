// SPDX-License-Identifier: Apache-2.0
#include "runtime/random.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <functional>

#include "runtime/uv_loop.hpp"

BOOST_AUTO_TEST_SUITE(random_numbers)

using namespace shardwire;

BOOST_AUTO_TEST_CASE(numbers_of_a_loop_differ_and_fill_every_byte) {
  UvLoop loop;
  loop.call([&] {
    BOOST_TEST(loop.random_number() != loop.random_number());
    Bytes seen(64);
    for (int i = 0; i < 20; ++i) {  // a byte stays zero in all of them once in 2^160
      Bytes more(seen.size());
      loop.fill_random(more);
      std::ranges::transform(seen, more, seen.begin(), std::bit_or{});
    }
    BOOST_TEST(std::ranges::count(seen, std::byte{0}) == 0);
  });
}

// Simulations fill them from a seed.
BOOST_AUTO_TEST_CASE(a_number_is_what_the_source_fills_in) {
  struct Made final : RandomSource {
    void fill_random(std::span<std::byte> into) override { std::ranges::fill(into, std::byte{0x11}); }
  };
  Made made;
  BOOST_TEST(made.random_number() == 0x1111'1111'1111'1111U);
}

BOOST_AUTO_TEST_SUITE_END()
