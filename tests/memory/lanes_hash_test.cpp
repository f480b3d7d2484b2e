// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include "memory/device_copy/lanes_hash.hpp"

#include <xxhash.h>

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "memory/host_lanes.hpp"
#include "memory/layouts.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(lanes_hash)

// A device's hash, compared with libxxhash.

using namespace shardwire;
using test::HostLanes;

namespace {

struct Dense {
  const std::vector<std::byte>& bytes;
  std::uint8_t byte(std::uint32_t at) const { return static_cast<std::uint8_t>(bytes.at(at)); }
  std::uint64_t word(std::uint32_t at) const {
    BOOST_REQUIRE_LE(at + 8, bytes.size());
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    return word;
  }
};

void check(layouts::Maker& maker, std::size_t length) {
  const std::vector<std::byte> bytes = maker.bytes(length);
  HostLanes lanes(static_cast<unsigned>(maker.below(memory::hash_lanes)));
  const Digest128 digest = memory::hash_stream(lanes, Dense{bytes}, static_cast<std::uint32_t>(length));
  const XXH128_hash_t expected = XXH3_128bits(bytes.data(), length);
  BOOST_REQUIRE_MESSAGE((digest == Digest128{expected.low64, expected.high64}), length << " bytes");
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_short_length_gives_what_libxxhash_gives) {
  layouts::Maker maker(test_seed());
  for (std::size_t length = 0; length <= 2200; ++length) {
    for (int round = 0; round < 3; ++round) check(maker, length);
  }
}

BOOST_AUTO_TEST_CASE(long_inputs_give_what_libxxhash_gives) {
  layouts::Maker maker(test_seed());
  for (const std::size_t length : {std::size_t{65536}, std::size_t{65535}, std::size_t{65537}, std::size_t{1} << 20}) {
    check(maker, length);
  }
  for (int round = 0; round < 60; ++round) check(maker, maker.below(std::size_t{1} << 20));
}

BOOST_AUTO_TEST_SUITE_END()
