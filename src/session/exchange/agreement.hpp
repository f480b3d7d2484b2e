// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shardwire/memory.hpp"
#include "transport/collective.hpp"
#include "wire/exchange_note.hpp"

// Which collective an exchange uses, if any, from what all members offer.
namespace shardwire {

/// Name and domain of the collectives that work here for memory of this kind.
std::vector<std::string> offered_collectives(MemoryKind kind);

/// What the first notes of all members come to.
struct GroupChoice {
  const transport::CollectiveTransport* collective = nullptr;  ///< null: bytes go as restores choose
  /// All that crosses goes in rounds, or the exchange ends. Else only what it moves, and that only where some pair of members
  /// has no direct path for it, which they find out when they are connected.
  bool forced = false;
  bool adopted = false;      ///< the callers' communicators are taken
  std::vector<int> members;  ///< of the group, ascending: a member's rank in the group is its index
  std::vector<int> devices;  ///< by member of the job: where its memory lies that goes in rounds
  Bytes kept{};              ///< id of the group that all of them have kept; empty: a new one is made

  /// Rank in the group, or -1.
  [[nodiscard]] int rank_of(int member) const;
};

/// A pure function: every member that is given the same notes finds the same. Rounds are of all members that have device
/// memory, or of all members where none has any.
/// Errors: throws Error{unsupported} with what each offers when rounds are forced and there is no collective that all of the
///         group have, and Error{invalid_argument} when some members of it give a communicator and others do not.
GroupChoice agree_on_group(std::span<const wire::ExchangeNote> notes);

/// Whether bytes go in rounds, once all have said whether they have direct paths.
bool needs_rounds(std::span<const wire::ExchangeNote> notes);

}  // namespace shardwire
