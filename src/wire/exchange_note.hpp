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

/// Slice `index` of a tensor that is cut into `count`.
struct ExchangePart {
  TensorKey key;
  std::uint32_t index = 0;
  std::uint32_t count = 1;
  bool operator==(const ExchangePart&) const = default;
  auto operator<=>(const ExchangePart&) const = default;
};

/// What writing one part into this member's memory does there.
struct ExchangeWrite {
  std::uint32_t part = 0;               ///< index into ExchangeNote::parts
  ByteCount bytes = 0;                  ///< staging that it takes here until it can be written
  std::vector<std::uint32_t> destroys;  ///< parts whose bytes, held here, it overwrites; may contain itself
  bool operator==(const ExchangeWrite&) const = default;
};

/// A piece that this member wants in rounds of a collective.
struct ExchangeRequest {
  std::uint32_t source = 0;  ///< member
  std::uint32_t tensor = 0;  ///< in what that member holds
  Box box;
  ByteCount bytes = 0;
  ByteCount run_bytes = 0;       ///< longest range that lies in one piece on both sides; divides `bytes`
  std::uint32_t item_bytes = 0;  ///< divides `run_bytes`
  bool operator==(const ExchangeRequest&) const = default;
};

/// One member's word at a barrier of an exchange.
struct ExchangeNote {
  struct Failure {
    ErrorCode code{};
    std::string message;
    bool operator==(const Failure&) const = default;
  };
  std::optional<Failure> failure{};
  std::vector<ExchangePart> parts{};
  std::vector<ExchangeWrite> writes{};
  std::vector<Alias> aliases{};  ///< second names of parameters, as this member's catalogs have them
  ByteCount staging_bytes = 0;   ///< this member's budget; 0 in notes that plan nothing
  /// Collectives that this member could move its bytes with: name and domain.
  std::vector<std::string> collectives{};
  bool forced = false;          ///< this member was told to use one of them
  bool unasked = false;         ///< it would also use one where bytes have no direct path
  bool adopts = false;          ///< its caller has a communicator for that
  std::int16_t device = -1;     ///< where its memory lies that one of them would move; -1: on none
  Bytes kept_group{};           ///< id of the group that it has from an exchange before
  std::uint32_t kept_size = 0;  ///< members of that
  Bytes group_id{};             ///< of the group that they join; its first member says it
  bool indirect = false;        ///< bytes of devices come to this member on no direct path
  std::uint32_t steps = 0;      ///< restores of this member until the next barrier
  std::vector<ExchangeRequest> requests{};
  bool operator==(const ExchangeNote&) const = default;
};

Bytes encode_exchange_note(const ExchangeNote& note);
/// Errors: throws Error{transport_failed} naming the field, as the readers of messages.hpp do.
ExchangeNote decode_exchange_note(std::span<const std::byte> bytes);

}  // namespace shardwire::wire
