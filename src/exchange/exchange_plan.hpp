// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wire/exchange_note.hpp"

namespace shardwire {

/// Maps each parameter to one canonical name, by the alias tables of all members together.
class OneName {
 public:
  OneName() = default;
  explicit OneName(std::span<const wire::ExchangeNote> notes);
  [[nodiscard]] const std::string& of(const std::string& fqn) const;
  [[nodiscard]] TensorKey of(const TensorKey& key) const { return {of(key.fqn), key.state}; }
  [[nodiscard]] bool empty() const { return names_.empty(); }  ///< every parameter has one name only

 private:
  std::map<std::string, std::string> names_;  // each maps to the least of its synonyms
};

/// Complements the check of a catalog, which does not know the aliases of other members.
/// Errors: throws Error{layout_mismatch} if two of the keys that `member` wants are one by `names`.
void require_disjoint(int member, std::span<const TensorKey> wanted, const OneName& names);

/// Replaces the name of every part by its canonical one.
/// Errors: throws Error{layout_mismatch} if one member wants two tensors that are one by another member's aliases.
void use_one_name(std::span<wire::ExchangeNote> notes, const OneName& names);

/// Reads and writes of one member between two barriers of an exchange.
struct ExchangeWave {
  struct Read {
    std::uint32_t part = 0;
    bool staged = false;  ///< false: read straight to its destination, which no member needs any more
  };
  std::vector<Read> reads;            ///< before the barrier; parts that this member writes
  std::vector<std::uint32_t> writes;  ///< after it: from staging to their destinations
};

/// The order in which an exchange reads and writes, as one member sees it.
struct ExchangePlan {
  std::vector<wire::ExchangePart> parts;  ///< of all members, ascending
  std::vector<ExchangeWave> waves;        ///< the same number on every member
  ByteCount staging_bytes = 0;            ///< maximum staging that this member uses at once

  /// Set if staging is too small: nothing may be moved then.
  struct Shortage {
    int member = 0;
    ByteCount bytes = 0;                      ///< required at once
    std::vector<wire::ExchangePart> waiting;  ///< parts that it would have to keep in staging
    bool operator==(const Shortage&) const = default;
  };
  std::optional<Shortage> shortage;
};

/// Orders the parts so that no member overwrites a part that any member still has to read, and so that no member stages
/// more than `budget_bytes` of parts. A part whose write destroys no unread part is read as soon as possible; any other
/// part waits in staging until the parts it would destroy have been read. A pure function: every member computes the
/// same waves from the same notes. `notes` are by member.
/// Requires: the parts that a note writes are distinct.
ExchangePlan plan_exchange(std::span<const wire::ExchangeNote> notes, ByteCount budget_bytes, int member);

}  // namespace shardwire
