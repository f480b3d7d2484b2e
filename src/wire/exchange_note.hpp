// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwire/box.hpp"
#include "shardwire/error.hpp"
#include "shardwire/tensor.hpp"

namespace shardwire::wire {

/// Slice `index` of a tensor that is split into `count` slices.
struct ExchangePart {
  TensorKey key;
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  bool operator==(const ExchangePart&) const = default;
  auto operator<=>(const ExchangePart&) const = default;
};

/// The effect of writing one part into this member's memory.
struct ExchangeWrite {
  std::uint32_t part = 0;               ///< index into ExchangeNote::parts
  ByteCount bytes = 0;                  ///< staging that it takes here until it can be written
  std::vector<std::uint32_t> destroys;  ///< parts whose bytes, held here, it overwrites; may contain itself
  bool operator==(const ExchangeWrite&) const = default;
};

/// A piece that this member wants in rounds of a collective.
struct ExchangeRequest {
  std::uint32_t source = 0;  ///< member
  std::uint32_t tensor = 0;  ///< tensor index at that member
  Box box;
  ByteCount bytes = 0;
  ByteCount run_bytes = 0;       ///< longest range that is contiguous on both sides; divides `bytes`
  std::uint32_t item_bytes = 0;  ///< divides `run_bytes`
  bool operator==(const ExchangeRequest&) const = default;
};

inline constexpr std::uint64_t max_exchange_number = std::uint64_t{1} << 62;

/// One member's contribution to a barrier of an exchange.
struct ExchangeNote {
  struct Failure {
    ErrorCode code{};
    std::string message;
    bool operator==(const Failure&) const = default;
  };
  std::optional<Failure> failure{};
  std::uint64_t number = 0;     ///< when members meet: the least that this member can give to the exchange
  std::int32_t held_rank = -1;  ///< layout rank of what this member holds; -1: nothing
  std::vector<ExchangePart> parts{};
  std::vector<ExchangeWrite> writes{};
  std::vector<Alias> aliases{};  ///< second names of parameters in this member's catalogs
  ByteCount staging_bytes = 0;   ///< this member's budget; 0 in notes that plan nothing
  /// Collectives that could move this member's bytes: name and domain.
  std::vector<std::string> collectives{};
  bool forced = false;          ///< this member's caller forced one of them
  bool unasked = false;         ///< it would also use one for bytes without a direct path
  bool adopts = false;          ///< its caller has a communicator for that
  std::int16_t device = -1;     ///< device of the memory that one of them would move; -1: none
  Bytes kept_group{};           ///< id of the group that it has from an earlier exchange
  std::uint32_t kept_size = 0;  ///< members of that group
  Bytes group_id{};             ///< id of the group that they join; set by its first member
  bool indirect = false;        ///< device bytes reach this member on no direct path
  std::uint32_t steps = 0;      ///< restores of this member until the next barrier
  std::vector<ExchangeRequest> requests{};
  bool operator==(const ExchangeNote&) const = default;
};

Bytes encode_exchange_note(const ExchangeNote& note);
/// Errors: throws Error{transport_failed} that names the field, as the readers of messages.hpp do.
ExchangeNote decode_exchange_note(std::span<const std::byte> bytes);

}  // namespace shardwire::wire
