// SPDX-License-Identifier: Apache-2.0
// Both ends of an encrypted connection, with nothing between them but this test.
#include "control/tls.hpp"

#include "control/tls_config.hpp"
#if SHARDWIRE_HAVE_TLS
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#endif

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "shardwire/error.hpp"
#include "support/encryption_built.hpp"
#include "support/sanitizer.hpp"

BOOST_AUTO_TEST_SUITE(tls)

using namespace shardwire;

namespace {

const TlsModule* module_here() {
  std::string why_not;
  return load_tls(why_not);
}

Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  return bytes;
}

struct Ends {
  explicit Ends(const Bytes& first, const Bytes& second, std::uint64_t records_per_key = tls_records_per_key)
      : initiator(module_here()->begin(TlsModule::Side::initiator, first, records_per_key)),
        acceptor(module_here()->begin(TlsModule::Side::acceptor, second, records_per_key)) {}

  /// Carries what waits until nothing does. `flip`: alters this bit of all that is carried, counted from the first.
  /// Returns the first error of an end.
  std::optional<Error> carry(std::optional<std::size_t> flip = std::nullopt) {
    std::optional<Error> first;
    for (bool moved = true; moved;) {
      moved = false;
      for (const bool forth : {true, false}) {
        Bytes bytes;
        (forth ? initiator : acceptor)->output(bytes);
        if (bytes.empty()) continue;
        moved = true;
        if (flip && *flip / 8 >= carried && *flip / 8 < carried + bytes.size()) {
          bytes[*flip / 8 - carried] ^= static_cast<std::byte>(1u << (*flip % 8));
        }
        carried += bytes.size();
        seen.insert(seen.end(), bytes.begin(), bytes.end());
        try {
          (forth ? acceptor : initiator)->receive(bytes, forth ? at_acceptor : at_initiator);
        } catch (const Error& error) {
          if (!first) first = error;
        }
      }
    }
    return first;
  }

  std::unique_ptr<support::Encryption> initiator;
  std::unique_ptr<support::Encryption> acceptor;
  Bytes at_initiator;
  Bytes at_acceptor;
  Bytes seen;  ///< by whoever is between them
  std::size_t carried = 0;
};

bool contains(const Bytes& bytes, const Bytes& part) {
  return std::search(bytes.begin(), bytes.end(), part.begin(), part.end()) != bytes.end();
}

const Bytes key = bytes_of("0123456789abcdef0123456789abcdef");

}  // namespace

BOOST_TEST_DECORATOR(*boost::unit_test::precondition(test::encryption_is_built))
BOOST_DATA_TEST_CASE(what_is_said_arrives_and_nobody_between_can_read_it,
                     boost::unit_test::data::make({16, 17, 16384, 16385, 1 << 20}), size) {
  const Bytes question = pattern(static_cast<std::size_t>(size));
  const Bytes answer = bytes_of("an answer of some length");
  Ends ends(key, key);
  ends.initiator->send(question);  // before the handshake: it waits
  ends.acceptor->send(answer);
  BOOST_TEST(!ends.carry());
  BOOST_TEST((ends.at_acceptor == question));
  BOOST_TEST((ends.at_initiator == answer));
  ends.acceptor->send(question);
  BOOST_TEST(!ends.carry());
  BOOST_TEST(ends.at_initiator.size() == answer.size() + question.size());
  BOOST_TEST(!contains(ends.seen, Bytes(question.begin(), question.begin() + 16)));
  BOOST_TEST(!contains(ends.seen, answer));
  BOOST_TEST(!contains(ends.seen, key));
}

BOOST_AUTO_TEST_CASE(another_key_ends_the_handshake_on_both_sides,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  Ends ends(key, bytes_of("0123456789abcdef0123456789abcdeg"));
  ends.initiator->send(bytes_of("secret"));
  const auto error = ends.carry();
  BOOST_REQUIRE(error.has_value());
  BOOST_TEST((error->code() == ErrorCode::invalid_argument));
  BOOST_TEST(ends.at_acceptor.empty());
  BOOST_TEST(!contains(ends.seen, bytes_of("secret")));
}

BOOST_AUTO_TEST_CASE(each_connection_has_keys_of_its_own, *boost::unit_test::precondition(test::encryption_is_built)) {
  Ends first(key, key);
  Ends second(key, key);
  for (Ends* const ends : {&first, &second}) {
    ends->initiator->send(pattern(4096));
    BOOST_TEST(!ends->carry());
  }
  BOOST_TEST((first.seen != second.seen));
  // A recording is refused when it is sent again.
  Ends again(key, key);
  Bytes decrypted;
  BOOST_CHECK_THROW(
      {
        again.acceptor->receive(first.seen, decrypted);
        again.acceptor->receive(second.seen, decrypted);
      },
      Error);
  BOOST_TEST(decrypted.empty());
}

// 64 records in each direction, with a new key after each third.
BOOST_AUTO_TEST_CASE(keys_change_while_both_ends_talk, *boost::unit_test::precondition(test::encryption_is_built)) {
  Ends often(key, key, 3);
  Ends never(key, key);
  Bytes said;
  for (std::size_t i = 0; i < 64; ++i) {
    const Bytes words = pattern(100 + i);
    said.insert(said.end(), words.begin(), words.end());
    for (Ends* const ends : {&often, &never}) {
      ends->initiator->send(words);
      ends->acceptor->send(words);
      if (i % 5 == 4) BOOST_TEST(!ends->carry());
    }
  }
  for (Ends* const ends : {&often, &never}) {
    BOOST_TEST(!ends->carry());
    BOOST_TEST((ends->at_acceptor == said));
    BOOST_TEST((ends->at_initiator == said));
  }
  BOOST_TEST(often.carried > never.carried + 2 * 20 * 20);  // each change is a record
}

// Whatever bit of the handshake or of a message is altered: one end notices, and no byte that was not said arrives.
BOOST_AUTO_TEST_CASE(an_altered_bit_is_never_accepted, *boost::unit_test::precondition(test::encryption_is_built)) {
  const Bytes question = pattern(200);
  const Bytes answer = pattern(100);
  Ends undisturbed(key, key);
  undisturbed.initiator->send(question);
  undisturbed.acceptor->send(answer);
  BOOST_TEST(!undisturbed.carry());
  const std::size_t bits = undisturbed.carried * 8;
  int noticed = 0;
  const std::size_t step = std::max<std::size_t>(1, bits / test::rounds<std::size_t>(1500));
  for (std::size_t bit = 0; bit < bits; bit += step) {
    Ends ends(key, key);
    ends.initiator->send(question);
    ends.acceptor->send(answer);
    if (ends.carry(bit)) ++noticed;
    BOOST_REQUIRE((std::equal(ends.at_acceptor.begin(), ends.at_acceptor.end(), question.begin(),
                              question.begin() + static_cast<std::ptrdiff_t>(ends.at_acceptor.size()))));
    BOOST_REQUIRE((std::equal(ends.at_initiator.begin(), ends.at_initiator.end(), answer.begin(),
                              answer.begin() + static_cast<std::ptrdiff_t>(ends.at_initiator.size()))));
  }
  // A longer length in a header leaves the end waiting, which the limit of the handshake ends.
  BOOST_TEST(noticed > test::rounds(1300));
}

BOOST_AUTO_TEST_CASE(what_is_no_tls_is_refused, *boost::unit_test::precondition(test::encryption_is_built)) {
  for (const TlsModule::Side side : {TlsModule::Side::initiator, TlsModule::Side::acceptor}) {
    const auto end = module_here()->begin(side, key, tls_records_per_key);
    Bytes decrypted;
    BOOST_CHECK_EXCEPTION(end->receive(bytes_of("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), decrypted), Error,
                          [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
    BOOST_TEST(decrypted.empty());
  }
}

#if SHARDWIRE_HAVE_TLS

namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

/// A server of TLS 1.3 that has no key of the job, and a certificate that it has made itself.
class Impostor {
 public:
  Impostor() : context_(SSL_CTX_new(TLS_server_method())) {
    const std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>> own_key(EVP_EC_gen("P-256"));
    const std::unique_ptr<X509, Freed<X509_free>> certificate(X509_new());
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), own_key.get());
    X509_NAME* const name = X509_get_subject_name(certificate.get());
    const unsigned char text[] = "member 0";
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, text, -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_sign(certificate.get(), own_key.get(), EVP_sha256());
    BOOST_REQUIRE(SSL_CTX_use_certificate(context_.get(), certificate.get()) == 1);
    BOOST_REQUIRE(SSL_CTX_use_PrivateKey(context_.get(), own_key.get()) == 1);
    ssl_.reset(SSL_new(context_.get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_accept_state(ssl_.get());
  }

  /// Its answer to what a client has said.
  Bytes answer(const Bytes& said) {
    BIO_write(in_, said.data(), static_cast<int>(said.size()));
    SSL_do_handshake(ssl_.get());
    Bytes bytes(BIO_ctrl_pending(out_));
    if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    return bytes;
  }

 private:
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
  BIO* in_ = nullptr;  // owner: ssl_
  BIO* out_ = nullptr;
};

/// A client of TLS 1.3 that does without an exchange of keys, if the server lets it.
class Client {
 public:
  using Key = std::array<unsigned char, 32>;

  Client(const Key& psk, const char* groups) : psk_(psk), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_3_VERSION);
    SSL_CTX_set_options(context_.get(), SSL_OP_ALLOW_NO_DHE_KEX);
    BOOST_REQUIRE(SSL_CTX_set_ciphersuites(context_.get(), "TLS_AES_128_GCM_SHA256") == 1);
    BOOST_REQUIRE(SSL_CTX_set1_groups_list(context_.get(), groups) == 1);
    ssl_.reset(SSL_new(context_.get()));
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_psk_use_session_callback(ssl_.get(), offer_key);
    SSL_set_connect_state(ssl_.get());
  }

  /// Whether the two have agreed on keys. `decrypted`: see support::Encryption::receive().
  bool connects_to(support::Encryption& acceptor, Bytes& decrypted) {
    for (int flights = 0; flights < 4; ++flights) {
      ERR_clear_error();  // of other ends
      const int result = SSL_do_handshake(ssl_.get());
      if (result != 1 && SSL_get_error(ssl_.get(), result) != SSL_ERROR_WANT_READ) return false;
      if (!carry(acceptor, decrypted)) return false;
      if (result == 1) return true;
    }
    return false;
  }
  bool say(const Bytes& words, support::Encryption& acceptor, Bytes& decrypted) {
    return SSL_write(ssl_.get(), words.data(), static_cast<int>(words.size())) == static_cast<int>(words.size()) &&
           carry(acceptor, decrypted);
  }
  [[nodiscard]] bool has_exchanged_keys() const {
    EVP_PKEY* of_server = nullptr;
    const bool has = SSL_get_peer_tmp_key(ssl_.get(), &of_server) == 1;
    EVP_PKEY_free(of_server);
    return has;
  }

 private:
  static int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* length,
                       SSL_SESSION** session) {
    static constexpr std::string_view name = "shardwire job";
    static constexpr unsigned char suite[] = {0x13, 0x01};
    const Key& psk = static_cast<Client*>(SSL_get_app_data(ssl))->psk_;
    *session = SSL_SESSION_new();
    SSL_SESSION_set1_master_key(*session, psk.data(), psk.size());
    SSL_SESSION_set_cipher(*session, SSL_CIPHER_find(ssl, suite));
    SSL_SESSION_set_protocol_version(*session, TLS1_3_VERSION);
    *identity = reinterpret_cast<const unsigned char*>(name.data());
    *length = name.size();
    return 1;
  }
  bool carry(support::Encryption& acceptor, Bytes& decrypted) {
    Bytes bytes(BIO_ctrl_pending(out_));
    if (!bytes.empty()) BIO_read(out_, bytes.data(), static_cast<int>(bytes.size()));
    try {
      acceptor.receive(bytes, decrypted);
    } catch (const Error&) {
      return false;
    }
    acceptor.output(bytes);
    if (!bytes.empty()) BIO_write(in_, bytes.data(), static_cast<int>(bytes.size()));
    return true;
  }

  Key psk_;
  std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
  BIO* in_ = nullptr;  // owner: ssl_
  BIO* out_ = nullptr;
};

// HKDF-SHA256 (RFC 5869) of `key` without salt, with the info "shardwire tls 1.3 external psk", computed by Python's hmac.
constexpr Client::Key psk_of_key{0xf8, 0x7b, 0x8d, 0x18, 0x12, 0xe4, 0x1c, 0xfc, 0xfa, 0x99, 0xa8,
                                 0x97, 0xd5, 0x32, 0x08, 0xcf, 0x34, 0x5f, 0xaa, 0xad, 0x5d, 0x58,
                                 0x11, 0xa4, 0xf9, 0xd8, 0x99, 0x10, 0xb6, 0x3d, 0xe6, 0xa9};

}  // namespace

BOOST_AUTO_TEST_CASE(the_key_of_tls_is_derived_from_the_job_key_as_documented,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const auto acceptor = module_here()->begin(TlsModule::Side::acceptor, key, tls_records_per_key);
  Client client(psk_of_key, "P-256");
  Bytes decrypted;
  BOOST_REQUIRE(client.connects_to(*acceptor, decrypted));
  BOOST_TEST(client.say(bytes_of("hello"), *acceptor, decrypted));
  BOOST_TEST((decrypted == bytes_of("hello")));

  Client::Key other = psk_of_key;
  other.back() ^= 1;
  const auto next = module_here()->begin(TlsModule::Side::acceptor, key, tls_records_per_key);
  Client stranger(other, "P-256");
  BOOST_TEST(!stranger.connects_to(*next, decrypted));
}

// Also run with an openssl.cnf that allows connections without an exchange, and leaves the acceptor no group of this client.
BOOST_AUTO_TEST_CASE(no_connection_goes_without_an_exchange_of_keys,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  const auto acceptor = module_here()->begin(TlsModule::Side::acceptor, key, tls_records_per_key);
  Client client(psk_of_key, "X448");
  Bytes decrypted;
  const bool connected = client.connects_to(*acceptor, decrypted);
  BOOST_TEST((!connected || client.has_exchanged_keys()));
}

BOOST_AUTO_TEST_CASE(a_certificate_in_place_of_the_key_is_refused,
                     *boost::unit_test::precondition(test::encryption_is_built)) {
  Impostor impostor;
  const auto end = module_here()->begin(TlsModule::Side::initiator, key, tls_records_per_key);
  end->send(bytes_of("secret"));
  Bytes said;
  end->output(said);
  const Bytes answer = impostor.answer(said);
  BOOST_REQUIRE(answer.size() > 300U);  // with a certificate in it
  Bytes decrypted;
  BOOST_CHECK_EXCEPTION(end->receive(answer, decrypted), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
  end->output(said);
  BOOST_TEST(said.size() < 100U);  // an alert, and nothing of what it wanted to say
  BOOST_CHECK_THROW(
      {
        end->send(bytes_of("more"));
        end->receive(answer, decrypted);
      },
      Error);
}

#endif

BOOST_AUTO_TEST_SUITE_END()
