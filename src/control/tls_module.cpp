// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 with an external key. The library does no cryptography of its own here: OpenSSL does all of it, in memory.
#include <fmt/core.h>
#include <openssl/core_names.h>
#include <openssl/err.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "control/tls.hpp"
#include "shardwire/error.hpp"
#include "support/module_build.hpp"

namespace shardwire {
namespace {

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

constexpr std::string_view psk_label = "shardwire tls 1.3 external psk";
constexpr std::string_view psk_identity = "shardwire job";
// Both suites use SHA-256, as the key does.
constexpr const char* suites = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr std::array<unsigned char, 2> suite_of_key{0x13, 0x01};
constexpr std::size_t read_bytes = 16 * 1024;  // the plain text of a record

using Psk = std::array<unsigned char, 32>;

std::string reason() {
  const unsigned long error = ERR_peek_last_error();
  const char* const text = error == 0 ? nullptr : ERR_reason_error_string(error);
  return text == nullptr ? "no reason given" : text;
}

void check(bool done, const char* what) {
  if (!done) throw Error(ErrorCode::internal, fmt::format("{}: {}", what, reason()));
}

Psk derive(std::span<const std::byte> job_key) {
  const std::unique_ptr<EVP_KDF, Freed<EVP_KDF_free>> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  check(kdf != nullptr, "HKDF");
  const std::unique_ptr<EVP_KDF_CTX, Freed<EVP_KDF_CTX_free>> context(EVP_KDF_CTX_new(kdf.get()));
  check(context != nullptr, "HKDF");
  std::string digest = "SHA256";
  std::string label(psk_label);
  std::string key(reinterpret_cast<const char*>(job_key.data()), job_key.size());
  const OSSL_PARAM parameters[] = {OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), 0),
                                   OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, key.data(), key.size()),
                                   OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, label.data(), label.size()),
                                   OSSL_PARAM_construct_end()};
  Psk psk;
  const bool done = EVP_KDF_derive(context.get(), psk.data(), psk.size(), parameters) == 1;
  OPENSSL_cleanse(key.data(), key.size());
  check(done, "HKDF");
  return psk;
}

class OpenSslTls final : public support::Encryption {
 public:
  OpenSslTls(TlsModule::Side side, std::span<const std::byte> job_key, std::uint64_t records_per_key);
  ~OpenSslTls() override { OPENSSL_cleanse(psk_.data(), psk_.size()); }
  OpenSslTls(const OpenSslTls&) = delete;
  OpenSslTls& operator=(const OpenSslTls&) = delete;

  void send(std::span<const std::byte> bytes) override;
  void receive(std::span<const std::byte> bytes, Bytes& decrypted) override;
  void output(Bytes& into) override;

 private:
  static const BIO_METHOD* between();
  static int read_input(BIO* bio, char* into, std::size_t size, std::size_t* got);
  static int write_output(BIO* bio, const char* bytes, std::size_t size, std::size_t* written);
  static int offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* length,
                       SSL_SESSION** session);
  static int find_key(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** session);
  /// Owners: the caller. Null: there is none.
  SSL_SESSION* key_as_session();
  void go_on_with_handshake();
  void encrypt(std::span<const std::byte> bytes);
  /// Appends what in_ holds.
  void decrypt(Bytes& decrypted);

  Psk psk_;
  std::unique_ptr<SSL, Freed<SSL_free>> ssl_;
  std::span<const std::byte> in_;  // of receive(), and not read yet
  Bytes out_;                      // for output()
  bool established_ = false;
  std::uint64_t records_per_key_;
  std::uint64_t records_ = 0;  // sent with the present key
  Bytes waiting_;              // for the end of the handshake
};

SSL_CTX* make_context(const SSL_METHOD* method) {
  SSL_CTX* const context = SSL_CTX_new(method);
  check(context != nullptr, "SSL_CTX_new");
  check(SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1, "TLS 1.3");
  check(SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1, "TLS 1.3");
  check(SSL_CTX_set_ciphersuites(context, suites) == 1, suites);
  check(SSL_CTX_set_num_tickets(context, 0) == 1, "SSL_CTX_set_num_tickets");
  // The system's openssl.cnf may allow it: then a key that leaks later would open what was recorded.
  SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  return context;
}

// Kept until the process ends.
SSL_CTX* context_of(TlsModule::Side side) {
  static SSL_CTX* const initiators = [] {
    SSL_CTX* const context = make_context(TLS_client_method());
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);  // nobody vouches for certificates, so none counts
    return context;
  }();
  static SSL_CTX* const acceptors = make_context(TLS_server_method());
  return side == TlsModule::Side::initiator ? initiators : acceptors;
}

OpenSslTls::OpenSslTls(TlsModule::Side side, std::span<const std::byte> job_key, std::uint64_t records_per_key)
    : psk_(derive(job_key)), ssl_(SSL_new(context_of(side))), records_per_key_(records_per_key) {
  BIO* const bio = BIO_new(between());
  if (!ssl_ || bio == nullptr) {
    BIO_free(bio);
    throw Error(ErrorCode::out_of_resources, "no memory for TLS");
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);  // which owns it now
  SSL_set_app_data(ssl_.get(), this);
  if (side == TlsModule::Side::initiator) {
    SSL_set_psk_use_session_callback(ssl_.get(), offer_key);
    SSL_set_connect_state(ssl_.get());
    go_on_with_handshake();
  } else {
    SSL_set_psk_find_session_callback(ssl_.get(), find_key);
    SSL_set_accept_state(ssl_.get());
  }
}

// OpenSSL reads from what receive() was given, and writes to what output() takes: its own BIOs of memory clear it, and copy once
// more. Kept until the process ends.
const BIO_METHOD* OpenSslTls::between() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "shardwire");
    check(made != nullptr, "BIO_meth_new");
    BIO_meth_set_read_ex(made, read_input);
    BIO_meth_set_write_ex(made, write_output);
    BIO_meth_set_ctrl(made, [](BIO*, int what, long, void*) { return what == BIO_CTRL_FLUSH ? 1L : 0L; });
    return made;
  }();
  return method;
}

int OpenSslTls::read_input(BIO* bio, char* into, std::size_t size, std::size_t* got) {
  auto& in = static_cast<OpenSslTls*>(BIO_get_data(bio))->in_;
  BIO_clear_retry_flags(bio);
  *got = std::min(size, in.size());
  if (*got == 0) {
    BIO_set_retry_read(bio);  // nothing there is no end
    return -1;
  }
  std::memcpy(into, in.data(), *got);
  in = in.subspan(*got);
  return 1;
}

int OpenSslTls::write_output(BIO* bio, const char* bytes, std::size_t size, std::size_t* written) {
  Bytes& out = static_cast<OpenSslTls*>(BIO_get_data(bio))->out_;
  BIO_clear_retry_flags(bio);
  *written = 0;
  try {
    const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
    out.insert(out.end(), begin, begin + size);
  } catch (const std::bad_alloc&) {
    return -1;
  }
  *written = size;
  return 1;
}

SSL_SESSION* OpenSslTls::key_as_session() {
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl_.get(), suite_of_key.data());
  std::unique_ptr<SSL_SESSION, Freed<SSL_SESSION_free>> session(SSL_SESSION_new());
  if (suite == nullptr || !session || SSL_SESSION_set1_master_key(session.get(), psk_.data(), psk_.size()) != 1 ||
      SSL_SESSION_set_cipher(session.get(), suite) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1) {
    return nullptr;
  }
  return session.release();
}

int OpenSslTls::offer_key(SSL* ssl, const EVP_MD* digest, const unsigned char** identity, std::size_t* length,
                          SSL_SESSION** session) {
  *session = nullptr;
  if (digest != nullptr && EVP_MD_is_a(digest, "SHA256") != 1)
    return 1;  // then without a key, which ends the handshake
  *session = static_cast<OpenSslTls*>(SSL_get_app_data(ssl))->key_as_session();
  if (*session == nullptr) return 0;
  *identity = reinterpret_cast<const unsigned char*>(psk_identity.data());
  *length = psk_identity.size();
  return 1;
}

int OpenSslTls::find_key(SSL* ssl, const unsigned char* identity, std::size_t length, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), length) != psk_identity) return 1;
  *session = static_cast<OpenSslTls*>(SSL_get_app_data(ssl))->key_as_session();
  return *session == nullptr ? 0 : 1;
}

void OpenSslTls::go_on_with_handshake() {
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    if (SSL_get_error(ssl_.get(), result) == SSL_ERROR_WANT_READ) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("no TLS handshake: {}", reason()));
  }
  // Certificates would end here.
  if (SSL_session_reused(ssl_.get()) != 1)
    throw Error(ErrorCode::invalid_argument, "no TLS handshake with the job key");
  established_ = true;
  encrypt(waiting_);
  Bytes().swap(waiting_);
}

void OpenSslTls::send(std::span<const std::byte> bytes) {
  if (established_) return encrypt(bytes);
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
}

void OpenSslTls::encrypt(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ERR_clear_error();
    std::size_t written = 0;
    if (records_++ == records_per_key_) {
      if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
        throw Error(ErrorCode::transport_failed, fmt::format("TLS cannot change its key: {}", reason()));
      }
      records_ = 1;
    }
    if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written) != 1) {
      throw Error(ErrorCode::transport_failed, fmt::format("TLS cannot send: {}", reason()));
    }
    bytes = bytes.subspan(written);
  }
}

void OpenSslTls::receive(std::span<const std::byte> bytes, Bytes& decrypted) {
  in_ = bytes;
  try {
    decrypt(decrypted);
  } catch (...) {
    in_ = {};
    throw;
  }
  in_ = {};
}

void OpenSslTls::decrypt(Bytes& decrypted) {
  if (!established_) go_on_with_handshake();
  while (established_) {
    const std::size_t before = decrypted.size();
    decrypted.resize(before + read_bytes);
    ERR_clear_error();
    std::size_t got = 0;
    const int result = SSL_read_ex(ssl_.get(), decrypted.data() + before, read_bytes, &got);
    decrypted.resize(before + got);
    if (result == 1) continue;
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN) return;
    throw Error(ErrorCode::transport_failed, fmt::format("TLS cannot read what has come: {}", reason()));
  }
}

void OpenSslTls::output(Bytes& into) {
  into.clear();
  into.swap(out_);
}

// The first of all calls of OpenSSL decides whether it ends itself when the process exits: sessions may live on until then.
std::unique_ptr<support::Encryption> begin(TlsModule::Side side, std::span<const std::byte> job_key,
                                           std::uint64_t records_per_key) {
  check(OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) == 1, "OPENSSL_init_ssl");
  return std::make_unique<OpenSslTls>(side, job_key, records_per_key);
}

}  // namespace
}  // namespace shardwire

extern "C" {

[[gnu::visibility("default")]] const char* shardwire_module_build() {
  return shardwire::support::module_build;
}

[[gnu::visibility("default")]] const void* shardwire_module_table() {
  static constexpr shardwire::TlsModule table{shardwire::begin};
  return &table;
}

}  // extern "C"
