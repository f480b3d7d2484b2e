// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/device_copy/host_device.hpp"
#include "support/digest128.hpp"

// XXH3 with 128 bits, seed 0 and the default secret, after its specification (github.com/Cyan4973/xxHash,
// doc/xxhash_spec.md): inputs of up to 240 bytes, and the steps for longer ones; memory/device_copy/lanes_hash.hpp
// distributes those over threads.
namespace shardwire::memory::xxh3 {

using Word = std::uint64_t;

inline constexpr Word prime32_1 = 0x9e3779b1U;
inline constexpr Word prime32_2 = 0x85ebca77U;
inline constexpr Word prime32_3 = 0xc2b2ae3dU;
inline constexpr Word prime64_1 = 0x9e3779b185ebca87U;
inline constexpr Word prime64_2 = 0xc2b2ae3d27d4eb4fU;
inline constexpr Word prime64_3 = 0x165667b19e3779f9U;
inline constexpr Word prime64_4 = 0x85ebca77c2b2ae63U;
inline constexpr Word prime64_5 = 0x27d4eb2f165667c5U;
inline constexpr Word prime_mx1 = 0x165667919e3779f9U;
inline constexpr Word prime_mx2 = 0x9fb21c651e98df25U;

inline constexpr unsigned secret_bytes = 192;
/// Longer inputs are hashed in stripes.
inline constexpr std::uint64_t max_short_bytes = 240;
inline constexpr unsigned stripe_bytes = 64;
inline constexpr unsigned lanes = stripe_bytes / sizeof(Word);
/// The secret advances by a word per stripe; after a block the accumulators are scrambled, and the secret starts again.
inline constexpr unsigned block_stripes = (secret_bytes - stripe_bytes) / sizeof(Word);
inline constexpr unsigned block_bytes = block_stripes * stripe_bytes;

/// Eight bytes of the default secret, from any byte offset.
SHARDWIRE_HOST_DEVICE inline Word secret(unsigned at) {
  SHARDWIRE_CONSTANT Word words[secret_bytes / sizeof(Word)] = {
      0xbe4ba423396cfeb8U, 0x1cad21f72c81017cU, 0xdb979083e96dd4deU, 0x1f67b3b7a4a44072U, 0x78e5c0cc4ee679cbU,
      0x2172ffcc7dd05a82U, 0x8e2443f7744608b8U, 0x4c263a81e69035e0U, 0xcb00c391bb52283cU, 0xa32e531b8b65d088U,
      0x4ef90da297486471U, 0xd8acdea946ef1938U, 0x3f349ce33f76faa8U, 0x1d4f0bc7c7bbdcf9U, 0x3159b4cd4be0518aU,
      0x647378d9c97e9fc8U, 0xc3ebd33483acc5eaU, 0xeb6313faffa081c5U, 0x49daf0b751dd0d17U, 0x9e68d429265516d3U,
      0xfca1477d58be162bU, 0xce31d07ad1b8f88fU, 0x280416958f3acb45U, 0x7e404bbbcafbd7afU,
  };
  const unsigned shift = 8 * (at % 8);
  const Word low = words[at / 8] >> shift;
  return shift == 0 ? low : low | (words[at / 8 + 1] << (64 - shift));
}

/// Low and high half of a product.
struct Product {
  Word low = 0;
  Word high = 0;
};

SHARDWIRE_HOST_DEVICE inline Product multiply(Word a, Word b) {
#if defined(__CUDA_ARCH__)
  return {a * b, __umul64hi(a, b)};
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return {static_cast<Word>(product), static_cast<Word>(product >> 64)};
#endif
}
SHARDWIRE_HOST_DEVICE inline Word fold(Word a, Word b) {
  const Product product = multiply(a, b);
  return product.low ^ product.high;
}
SHARDWIRE_HOST_DEVICE inline Word avalanche(Word hash) {
  hash ^= hash >> 37;
  hash *= prime_mx1;
  return hash ^ (hash >> 32);
}
/// XXH64's avalanche function.
SHARDWIRE_HOST_DEVICE inline Word avalanche64(Word hash) {
  hash ^= hash >> 33;
  hash *= prime64_2;
  hash ^= hash >> 29;
  hash *= prime64_3;
  return hash ^ (hash >> 32);
}
SHARDWIRE_HOST_DEVICE inline std::uint32_t swap32(std::uint32_t value) {
  return (value << 24) | ((value << 8) & 0x00ff0000U) | ((value >> 8) & 0x0000ff00U) | (value >> 24);
}
SHARDWIRE_HOST_DEVICE inline Word swap64(Word value) {
  return (Word{swap32(static_cast<std::uint32_t>(value))} << 32) | swap32(static_cast<std::uint32_t>(value >> 32));
}

namespace detail {

/// Little-endian, any alignment.
template <unsigned Size = sizeof(Word)>
SHARDWIRE_HOST_DEVICE inline Word read(const std::uint8_t* from) {
  Word value = 0;
  for (unsigned i = 0; i < Size; ++i) value |= Word{from[i]} << (8 * i);
  return value;
}

SHARDWIRE_HOST_DEVICE inline Digest128 hash_to_3(const std::uint8_t* input, std::uint32_t length) {
  const std::uint32_t low =
      (std::uint32_t{input[0]} << 16) | (std::uint32_t{input[length >> 1]} << 24) | input[length - 1] | (length << 8);
  const std::uint32_t swapped = swap32(low);
  const std::uint32_t high = (swapped << 13) | (swapped >> 19);
  const auto half = [](unsigned at) { return static_cast<std::uint32_t>(secret(at)); };
  return {avalanche64(low ^ Word{half(0) ^ half(4)}), avalanche64(high ^ Word{half(8) ^ half(12)})};
}

SHARDWIRE_HOST_DEVICE inline Digest128 hash_to_8(const std::uint8_t* input, Word length) {
  const Word keyed = (read<4>(input) | (read<4>(input + length - 4) << 32)) ^ (secret(16) ^ secret(24));
  Product hash = multiply(keyed, prime64_1 + (length << 2));
  hash.high += hash.low << 1;
  hash.low ^= hash.high >> 3;
  hash.low ^= hash.low >> 35;
  hash.low *= prime_mx2;
  hash.low ^= hash.low >> 28;
  return {hash.low, avalanche(hash.high)};
}

SHARDWIRE_HOST_DEVICE inline Digest128 hash_to_16(const std::uint8_t* input, Word length) {
  Word last = read(input + length - 8);
  Product hash = multiply(read(input) ^ last ^ secret(32) ^ secret(40), prime64_1);
  hash.low += (length - 1) << 54;
  last ^= secret(48) ^ secret(56);
  hash.high += last + (last & 0xffffffffU) * (prime32_2 - 1);
  hash.low ^= swap64(hash.high);
  const Product mixed = multiply(hash.low, prime64_2);
  return {avalanche(mixed.low), avalanche(mixed.high + hash.high * prime64_2)};
}

SHARDWIRE_HOST_DEVICE inline Word mixed(const std::uint8_t* input, unsigned key) {
  return fold(read(input) ^ secret(key), read(input + 8) ^ secret(key + 8));
}
SHARDWIRE_HOST_DEVICE inline void mix(Product& sums, const std::uint8_t* first, const std::uint8_t* second,
                                      unsigned key) {
  sums.low += mixed(first, key);
  sums.low ^= read(second) + read(second + 8);
  sums.high += mixed(second, key + 16);
  sums.high ^= read(first) + read(first + 8);
}
SHARDWIRE_HOST_DEVICE inline Digest128 finish_mixed(const Product& sums, Word length) {
  const Word high = sums.low * prime64_1 + sums.high * prime64_4 + length * prime64_2;
  return {avalanche(sums.low + sums.high), Word{0} - avalanche(high)};
}

SHARDWIRE_HOST_DEVICE inline Digest128 hash_to_128(const std::uint8_t* input, Word length) {
  Product sums{length * prime64_1, 0};
  for (unsigned pair = static_cast<unsigned>(length - 1) / 32 + 1; pair-- > 0;) {
    mix(sums, input + 16 * pair, input + length - 16 * (pair + 1), 32 * pair);
  }
  return finish_mixed(sums, length);
}

SHARDWIRE_HOST_DEVICE inline Digest128 hash_to_240(const std::uint8_t* input, Word length) {
  constexpr unsigned first_bytes = 128;  // after which the secret starts again at a small offset
  constexpr unsigned second_key = 3;
  constexpr unsigned last_key = 136 - 17 - 16;
  Product sums{length * prime64_1, 0};
  for (unsigned at = 0; at < first_bytes; at += 32) mix(sums, input + at, input + at + 16, at);
  sums = {avalanche(sums.low), avalanche(sums.high)};
  for (unsigned at = first_bytes; at + 32 <= length; at += 32) {
    mix(sums, input + at, input + at + 16, at - first_bytes + second_key);
  }
  mix(sums, input + length - 16, input + length - 32, last_key);
  return finish_mixed(sums, length);
}

}  // namespace detail

/// Requires: length <= max_short_bytes.
SHARDWIRE_HOST_DEVICE inline Digest128 hash_short(const std::uint8_t* input, std::uint64_t length) {
  if (length == 0) return {avalanche64(secret(64) ^ secret(72)), avalanche64(secret(80) ^ secret(88))};
  if (length <= 3) return detail::hash_to_3(input, static_cast<std::uint32_t>(length));
  if (length <= 8) return detail::hash_to_8(input, length);
  if (length <= 16) return detail::hash_to_16(input, length);
  if (length <= 128) return detail::hash_to_128(input, length);
  return detail::hash_to_240(input, length);
}

/// Initial value of an accumulator.
SHARDWIRE_HOST_DEVICE inline Word first_sum(unsigned lane) {
  SHARDWIRE_CONSTANT Word firsts[lanes] = {prime32_3, prime64_1, prime64_2, prime64_3,
                                           prime64_4, prime32_2, prime64_5, prime32_1};
  return firsts[lane];
}
/// Added to the word's own accumulator; the word itself is added to the neighbour's.
SHARDWIRE_HOST_DEVICE inline Word keyed_product(Word word, Word key) {
  const Word mixed = word ^ key;
  return (mixed & 0xffffffffU) * (mixed >> 32);
}
SHARDWIRE_HOST_DEVICE inline unsigned key_of(unsigned stripe, unsigned lane) {
  return static_cast<unsigned>(sizeof(Word)) * (stripe + lane);
}
/// Key offset of the last stripe, which is the last 64 bytes of the input.
SHARDWIRE_HOST_DEVICE inline unsigned last_key_of(unsigned lane) {
  return secret_bytes - stripe_bytes - 7 + static_cast<unsigned>(sizeof(Word)) * lane;
}
SHARDWIRE_HOST_DEVICE inline unsigned scramble_key_of(unsigned lane) {
  return secret_bytes - stripe_bytes + static_cast<unsigned>(sizeof(Word)) * lane;
}
/// An accumulator after a whole block.
SHARDWIRE_HOST_DEVICE inline Word scrambled(Word sum, Word key) {
  return (sum ^ (sum >> 47) ^ key) * prime32_1;
}

/// The digest of `length` bytes from all accumulators.
SHARDWIRE_HOST_DEVICE inline Digest128 merged(const Word (&sums)[lanes], Word length) {
  const auto merge = [&](unsigned key, Word start) {
    for (unsigned lane = 0; lane < lanes; lane += 2) {
      start += fold(sums[lane] ^ secret(key + 8 * lane), sums[lane + 1] ^ secret(key + 8 * lane + 8));
    }
    return avalanche(start);
  };
  return {merge(11, length * prime64_1), merge(secret_bytes - stripe_bytes - 11, ~(length * prime64_2))};
}

}  // namespace shardwire::memory::xxh3
