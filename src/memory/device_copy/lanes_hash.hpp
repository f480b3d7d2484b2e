// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/device_copy/host_device.hpp"
#include "memory/device_copy/xxh3.hpp"
#include "support/digest128.hpp"

namespace shardwire::memory {

/// Threads that hash together: a warp of a device, or a loop on a processor.
inline constexpr unsigned hash_lanes = 32;

/// The state of one lane. It has one accumulator, shared with the lanes whose number is the same modulo 8, and every
/// fourth stripe of a block.
struct HashLane {
  static constexpr unsigned words_of_block = xxh3::block_bytes / sizeof(std::uint64_t) / hash_lanes;

  std::uint64_t sum = 0;
  std::uint64_t products = 0;  ///< for this accumulator
  std::uint64_t words = 0;     ///< for its neighbour
  std::uint64_t keys[words_of_block] = {};
  std::uint64_t scramble_key = 0;
};

namespace detail {

SHARDWIRE_HOST_DEVICE inline unsigned stripe_of(unsigned lane, unsigned word) {
  return lane / xxh3::lanes + word * (hash_lanes / xxh3::lanes);
}

SHARDWIRE_HOST_DEVICE inline void add_word(HashLane& state, std::uint64_t word, std::uint64_t key) {
  state.words += word;
  state.products += xxh3::keyed_product(word, key);
}

template <typename Lanes, typename Stream>
SHARDWIRE_HOST_DEVICE inline Digest128 hash_long(Lanes& lanes, const Stream& stream, std::uint32_t length) {
  const std::uint32_t stripes =
      (length - 1) / xxh3::stripe_bytes;  // without the last one, which may overlap the one before
  lanes.each([&](unsigned lane, HashLane& state) {
    state.sum = xxh3::first_sum(lane % xxh3::lanes);
    for (unsigned word = 0; word < HashLane::words_of_block; ++word) {
      state.keys[word] = xxh3::secret(xxh3::key_of(stripe_of(lane, word), lane % xxh3::lanes));
    }
    state.scramble_key = xxh3::secret(xxh3::scramble_key_of(lane % xxh3::lanes));
  });
  for (std::uint32_t block = 0; block * xxh3::block_stripes < stripes; ++block) {
    const std::uint32_t left = stripes - block * xxh3::block_stripes;
    const std::uint32_t here = left < xxh3::block_stripes ? left : xxh3::block_stripes;
    lanes.each([&](unsigned lane, HashLane& state) {
      // All loads come before the first addition.
      std::uint64_t words[HashLane::words_of_block] = {};
      SHARDWIRE_UNROLL
      for (unsigned word = 0; word < HashLane::words_of_block; ++word) {
        const unsigned stripe = stripe_of(lane, word);
        if (stripe >= here) continue;
        words[word] = stream.word(block * xxh3::block_bytes + stripe * xxh3::stripe_bytes + lane % xxh3::lanes * 8);
      }
      state.products = 0;
      state.words = 0;
      SHARDWIRE_UNROLL
      for (unsigned word = 0; word < HashLane::words_of_block; ++word) {
        if (stripe_of(lane, word) < here) add_word(state, words[word], state.keys[word]);
      }
    });
    lanes.add_up();
    if (here < xxh3::block_stripes) break;
    lanes.each([](unsigned, HashLane& state) { state.sum = xxh3::scrambled(state.sum, state.scramble_key); });
  }
  lanes.each([&](unsigned lane, HashLane& state) {
    state.products = 0;
    state.words = 0;
    if (lane >= xxh3::lanes) return;
    add_word(state, stream.word(length - xxh3::stripe_bytes + 8 * lane), xxh3::secret(xxh3::last_key_of(lane)));
  });
  lanes.add_up();
  std::uint64_t sums[xxh3::lanes];
  lanes.collect(sums);
  return xxh3::merged(sums, length);
}

// A separate function, as it is rare and takes many registers. All lanes do the same.
template <typename Stream>
SHARDWIRE_HOST_DEVICE SHARDWIRE_NOINLINE Digest128 hash_few(const Stream& stream, std::uint32_t length) {
  std::uint8_t bytes[xxh3::max_short_bytes];
  for (std::uint32_t at = 0; at < length; ++at) bytes[at] = stream.byte(at);
  return xxh3::hash_short(bytes, length);
}

}  // namespace detail

/// XXH3-128 of a stream, which has byte(at), and word(at) for eight bytes from there. `lanes` has these operations over
/// its lanes:
///   each(f)        f(lane, state) for every lane
///   add_up()       to each sum: products of the lanes with its accumulator, and words of those with its neighbour
///   collect(sums)  the sums of the first eight lanes, to all
/// Every lane has the result.
template <typename Lanes, typename Stream>
SHARDWIRE_HOST_DEVICE inline Digest128 hash_stream(Lanes& lanes, const Stream& stream, std::uint32_t length) {
  if (length <= xxh3::max_short_bytes) return detail::hash_few(stream, length);
  return detail::hash_long(lanes, stream, length);
}

}  // namespace shardwire::memory
