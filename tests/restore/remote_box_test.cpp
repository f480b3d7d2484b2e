// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "restore/transfers.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <random>

#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(remote_box_bounds)

using namespace shardwire;
using namespace shardwire::restore;

namespace {

constexpr Rank source{1};
// Rank 1 holds rows 4 to 7.
const TensorLayout tensor{{{"w", "exp_avg"}, DType::f32, {8, 6}}, Layout::chunk(0, 2)};
const Box last_row{{7, 0}, {1, 6}};

const PlacedBox& found(const wire::TensorHandle& handle, ByteCount mapped, BoxCache& cache) {
  return remote_box(handle, mapped, tensor, source, last_row, cache);
}

void check_refused(const wire::TensorHandle& handle, ByteCount mapped) {
  BoxCache cache;
  BOOST_CHECK_EXCEPTION((void)found(handle, mapped, cache), Error, [](const Error& error) {
    return error.code() == ErrorCode::transport_failed && error.ranks() == std::vector<Rank>{source} &&
           std::string(error.what()).find("w:exp_avg") != std::string::npos;
  });
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_region_may_end_with_the_last_byte_of_the_box_and_not_before) {
  BoxCache cache;
  BOOST_TEST((found({0, 0, 32, {}}, 32 + 96, cache) == PlacedBox{Box{{4, 0}, {4, 6}}, 0, {6, 1}}));
  BOOST_TEST((found({0, 0, 32, {1, 4}}, 32 + 96, cache) == PlacedBox{Box{{4, 0}, {4, 6}}, 0, {1, 4}}));
  BOOST_TEST((found({0, 0, 32, {10, 1}}, 32 + 144, cache) == PlacedBox{Box{{4, 0}, {4, 6}}, 0, {10, 1}}));
  check_refused({0, 0, 32, {}}, 32 + 95);
  check_refused({0, 0, 32, {1, 4}}, 32 + 95);
  check_refused({0, 0, 32, {10, 1}}, 32 + 143);
  check_refused({0, 0, 32, {}}, 31);
}

BOOST_AUTO_TEST_CASE(offsets_and_strides_that_overflow_are_refused) {
  constexpr auto most = std::numeric_limits<Extent>::max();
  constexpr auto max_bytes = std::numeric_limits<ByteCount>::max();
  check_refused({0, 0, max_bytes, {}}, max_bytes);
  check_refused({0, 0, max_bytes - 90, {}}, max_bytes);
  for (const Extent stride : {most, most / 3, most / 5, most / 15, most / 4, most / 12, (most / 3) + 1}) {
    check_refused({0, 0, 0, {stride, 1}}, 1u << 20);
    check_refused({0, 0, 0, {1, stride}}, 1u << 20);
    check_refused({0, 0, 0, {stride, stride}}, 1u << 20);
  }
}

BOOST_AUTO_TEST_CASE(strides_of_other_dims_or_that_are_negative_are_refused) {
  check_refused({0, 0, 0, {1}}, 1u << 20);
  check_refused({0, 0, 0, {6, 1, 1}}, 1u << 20);
  check_refused({0, 0, 0, {-6, 1}}, 1u << 20);
  check_refused({0, 0, 64, {6, -1}}, 1u << 20);
}

BOOST_AUTO_TEST_CASE(no_handle_leads_outside_of_its_region) {
  std::mt19937_64 random(test_seed());
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    const ByteCount mapped = random() >> (random() % 64);
    const auto stride = [&] { return static_cast<Extent>((random() >> 1) >> (random() % 63)); };
    const wire::TensorHandle handle{0, 0, random() >> (random() % 64), {stride(), stride()}};
    BoxCache cache;
    try {
      const PlacedBox& placed = found(handle, mapped, cache);
      ++accepted;
      // Row 3 of the local array, every column; 128 bits cannot overflow here.
      __extension__ typedef unsigned __int128 Wide;
      const auto row = static_cast<Wide>(placed.local_strides[0]);
      const auto column = static_cast<Wide>(placed.local_strides[1]);
      const Wide end = handle.offset_bytes + 4 * (3 * row + 5 * column + 1);
      BOOST_TEST((end <= mapped));
    } catch (const Error& error) {
      BOOST_TEST((error.code() == ErrorCode::transport_failed));
    }
  }
  BOOST_TEST(accepted > 100);
}

BOOST_AUTO_TEST_SUITE_END()
