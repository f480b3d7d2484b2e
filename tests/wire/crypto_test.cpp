// SPDX-License-Identifier: Apache-2.0
#define BOOST_TEST_NO_MAIN
#include <boost/test/unit_test.hpp>
#include <functional>
#include <string_view>

#include "support/seed.hpp"
#include "wire/samples.hpp"

BOOST_AUTO_TEST_SUITE(crypto)

using namespace samples;

namespace {

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Nonce nonce_of(int value) {
  Nonce nonce{};
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

}  // namespace

BOOST_AUTO_TEST_CASE(digests_are_blake2b_256) {
  BOOST_CHECK_EQUAL(to_hex(digest_of({})), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  BOOST_CHECK_EQUAL(to_hex(digest_of(bytes_of("abc"))),
                    "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

BOOST_AUTO_TEST_CASE(a_proof_depends_on_the_key_the_role_and_every_field) {
  const Hello a{1, {"x"}, 0, 4, 17, "host", nonce_of(3)};
  const Hello b{1, {"x"}, 1, 4, 18, "host", nonce_of(4)};
  const Bytes key = bytes_of("secret");
  const Proof proof = prove(key, true, a, b);
  BOOST_CHECK(prove(key, true, a, b) == proof);
  BOOST_CHECK(prove(key, false, a, b) != proof);
  BOOST_CHECK(prove(key, true, b, a) != proof);
  BOOST_CHECK(prove(bytes_of("other"), true, a, b) != proof);
  BOOST_CHECK(prove({}, true, a, b) != proof);
  BOOST_CHECK(prove({}, true, a, b) == prove({}, true, a, b));

  const std::vector<std::function<void(Hello&)>> changes{
      [](Hello& h) { ++h.version; },           [](Hello& h) { h.capabilities.push_back("y"); },
      [](Hello& h) { h.capabilities = {""}; }, [](Hello& h) { ++h.rank; },
      [](Hello& h) { ++h.world_size; },        [](Hello& h) { ++h.incarnation; },
      [](Hello& h) { h.host += "1"; },         [](Hello& h) { h.nonce[31] ^= std::byte{1}; }};
  for (const auto& change : changes) {
    Hello changed = a;
    change(changed);
    BOOST_CHECK(prove(key, true, changed, b) != proof);
    changed = b;
    change(changed);
    BOOST_CHECK(prove(key, true, a, changed) != proof);
  }
}

BOOST_AUTO_TEST_CASE(digests_compare_by_every_byte) {
  const Digest digest = digest_of(bytes_of("abc"));
  for (std::size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    BOOST_CHECK(same_digest(digest, other));
    other[i] ^= std::byte{0x80};
    BOOST_CHECK(!same_digest(digest, other));
  }
}

BOOST_AUTO_TEST_SUITE_END()
