// SPDX-License-Identifier: Apache-2.0
#include <sodium.h>

#include <array>
#include <cstring>
#include <string_view>

#include "wire/capnp_output.hpp"
#include "wire/messages.hpp"

namespace shardwire::wire {
namespace {

void need_sodium() {
  static const int status = sodium_init();
  if (status < 0) throw Error(ErrorCode::internal, "libsodium cannot be initialised");
}

// Key of the proof in jobs without a secret; it only distinguishes members from stray connections.
constexpr std::string_view public_key_label = "shardwire job without a key";
constexpr std::string_view proof_label = "shardwire hello proof 1";

const unsigned char* bytes_of(const void* data) {
  return static_cast<const unsigned char*>(data);
}

class Hmac {
 public:
  explicit Hmac(std::span<const std::byte> key) {
    crypto_auth_hmacsha256_init(&state_, bytes_of(key.data()), key.size());
  }
  ~Hmac() { sodium_memzero(&state_, sizeof state_); }
  Hmac(const Hmac&) = delete;
  Hmac& operator=(const Hmac&) = delete;

  /// Lengths come first, so that bytes cannot move from one field to the next.
  void add(std::span<const std::byte> field) {
    std::array<unsigned char, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<unsigned char>(field.size() >> (8 * i));
    crypto_auth_hmacsha256_update(&state_, length.data(), length.size());
    crypto_auth_hmacsha256_update(&state_, bytes_of(field.data()), field.size());
  }
  Digest finish() {
    Digest digest{};
    static_assert(sizeof(Digest) == crypto_auth_hmacsha256_BYTES);
    crypto_auth_hmacsha256_final(&state_, reinterpret_cast<unsigned char*>(digest.data()));
    return digest;
  }

 private:
  crypto_auth_hmacsha256_state state_{};
};

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace

Digest digest_of(std::span<const std::byte> bytes) {
  need_sodium();
  Digest digest{};
  crypto_generichash(reinterpret_cast<unsigned char*>(digest.data()), digest.size(), bytes_of(bytes.data()),
                     bytes.size(), nullptr, 0);
  return digest;
}

Proof prove(std::span<const std::byte> key, bool initiator, const Hello& initiator_hello, const Hello& acceptor_hello) {
  need_sodium();
  Hmac hmac(key.empty() ? as_bytes(public_key_label) : key);
  hmac.add(as_bytes(proof_label));
  hmac.add(as_bytes(initiator ? "initiator" : "acceptor"));
  hmac.add(canonical_hello(initiator_hello));
  hmac.add(canonical_hello(acceptor_hello));
  return {hmac.finish()};
}

bool same_digest(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(const Digest& digest) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * digest.size());
  for (const std::byte byte : digest) {
    hex.push_back(digits[std::to_integer<unsigned>(byte) >> 4]);
    hex.push_back(digits[std::to_integer<unsigned>(byte) & 15]);
  }
  return hex;
}

}  // namespace shardwire::wire
