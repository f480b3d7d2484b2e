// SPDX-License-Identifier: Apache-2.0
#include "wire/payload_header.hpp"

#define BOOST_TEST_NO_MAIN
#include <boost/test/unit_test.hpp>

#include <cstring>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(payload_header)

using namespace samples;

namespace {

Bytes encoded(const PayloadHeader& header) {
  const EncodedHeader form(header);
  return {form.bytes().begin(), form.bytes().end()};
}

}  // namespace

BOOST_AUTO_TEST_CASE(every_header_survives_a_round_trip) {
  Maker maker(test_seed());
  for (int round = 0; round < 1000; ++round) {
    PayloadHeader header{.request = maker.word(), .part = static_cast<std::uint32_t>(maker.word())};
    if (maker.below(2) == 0) header.digest = Digest128{maker.word(), maker.word()};
    BOOST_REQUIRE((decode_header(encoded(header)) == header));
  }
}

BOOST_AUTO_TEST_CASE(a_whole_answer_without_digest_is_its_request_number_alone) {
  const Bytes bytes = encoded({.request = 0x0102030405060708});
  std::uint64_t number = 0;
  BOOST_REQUIRE_EQUAL(bytes.size(), sizeof number);
  std::memcpy(&number, bytes.data(), sizeof number);
  BOOST_TEST(number == 0x0102030405060708U);
  BOOST_TEST(encoded({.request = 1, .part = 1}).size() == 32U);
  BOOST_TEST(encoded({.request = 1, .part = 0, .digest = Digest128{}}).size() == 32U);
}

BOOST_AUTO_TEST_CASE(no_digest_is_not_a_digest_of_zeros) {
  const PayloadHeader with{.request = 5, .part = 3, .digest = Digest128{}};
  BOOST_TEST(decode_header(encoded(with)).digest.has_value());
  BOOST_TEST(!decode_header(encoded({.request = 5, .part = 3})).digest.has_value());
}

BOOST_AUTO_TEST_CASE(headers_of_any_other_length_answer_no_request) {
  for (std::size_t size = 0; size <= 64; ++size) {
    const PayloadHeader header = decode_header(Bytes(size, std::byte{1}));
    const bool plain = size == 8;
    BOOST_TEST((header == PayloadHeader{.request = plain ? 0x0101010101010101U : 0U}), "of " << size << " bytes");
  }
}

BOOST_AUTO_TEST_CASE(a_header_that_neither_has_a_digest_nor_has_none_is_refused) {
  Bytes bytes = encoded({.request = 7, .part = 2, .digest = Digest128{3, 4}});
  constexpr std::size_t flag = 12;
  for (const std::uint32_t value : {2U, 3U, 256U, 0x80000000U, 0xffffffffU}) {
    std::memcpy(bytes.data() + flag, &value, sizeof value);
    BOOST_TEST((decode_header(bytes) == PayloadHeader{}), value);
  }
  const std::uint32_t none = 0;
  std::memcpy(bytes.data() + flag, &none, sizeof none);
  BOOST_TEST((decode_header(bytes) == PayloadHeader{.request = 7, .part = 2}));
}

BOOST_AUTO_TEST_SUITE_END()
