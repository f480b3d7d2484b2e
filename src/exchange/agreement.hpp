// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shardwire/memory.hpp"
#include "transport/collective.hpp"
#include "wire/exchange_note.hpp"

// Chooses the collective of an exchange, if any, from the offers of all members.
namespace shardwire {

using Collectives = std::span<const transport::CollectiveTransport>;

/// Name and domain of those of `all` that work on this machine for memory of this kind.
std::vector<std::string> offered_collectives(MemoryKind kind, Collectives all = transport::registered_collectives());

/// Result of comparing the first notes of all members.
struct GroupChoice {
  const transport::CollectiveTransport* collective = nullptr;  ///< null: bytes go as restores choose
  /// All remote bytes go in rounds, or the exchange fails. Otherwise rounds carry only device memory, and only if some
  /// pair of members has no direct path for it; the members learn this when they connect.
  bool forced = false;
  bool adopted = false;      ///< the rounds use the callers' communicators
  std::vector<int> members;  ///< of the group, ascending: a member's rank in the group is its index
  std::vector<int> devices;  ///< by member of the job: device of its memory that goes in rounds
  Bytes kept{};  ///< id of the group that all of them kept from the last exchange; empty: a new group is needed

  /// Rank in the group, or -1.
  [[nodiscard]] int rank_of(int member) const;
};

/// A pure function: all members compute the same choice from the same notes. The group consists of all members with
/// device memory, or of all members if none has any.
/// `all`: the collectives of this build, in the order of preference.
/// Errors: throws Error{unsupported} with each member's offers if rounds are forced and the group has no common
///         collective; Error{invalid_argument} if only some members of the group give a communicator.
GroupChoice agree_on_group(std::span<const wire::ExchangeNote> notes,
                           Collectives all = transport::registered_collectives());

/// Whether bytes go in rounds, given every member's statement about direct paths.
bool needs_rounds(std::span<const wire::ExchangeNote> notes);

}  // namespace shardwire
