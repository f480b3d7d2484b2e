// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "wire/exchange_note.hpp"

namespace shardwire {

/// One name for each parameter, by the alias tables of all members together.
class OneName {
 public:
  OneName() = default;
  explicit OneName(std::span<const wire::ExchangeNote> notes);
  [[nodiscard]] const std::string& of(const std::string& fqn) const;
  [[nodiscard]] TensorKey of(const TensorKey& key) const { return {of(key.fqn), key.state}; }
  [[nodiscard]] bool empty() const { return names_.empty(); }  ///< every parameter has one name only

 private:
  std::map<std::string, std::string> names_;  // the least of all that mean the same
};

/// A catalog refuses to want one parameter twice, but knows no other member's aliases.
/// Errors: throws Error{layout_mismatch} when two of the keys that `member` wants are one by `names`.
void require_apart(int member, std::span<const TensorKey> wanted, const OneName& names);

/// Calls every part by its one name.
/// Errors: throws Error{layout_mismatch} when one member wants two tensors that another calls one.
void use_one_name(std::span<wire::ExchangeNote> notes, const OneName& names);

/// What one member does between two barriers of an exchange.
struct ExchangeWave {
  struct Read {
    std::uint32_t part = 0;
    bool staged = false;  ///< false: straight to where it belongs, nothing there is needed any more
  };
  std::vector<Read> reads;            ///< before the barrier; parts that this member writes
  std::vector<std::uint32_t> writes;  ///< after it: from staging to where they belong
};

/// The order in which an exchange reads and writes, as one member sees it.
struct ExchangePlan {
  std::vector<wire::ExchangePart> parts;  ///< of all members, ascending
  std::vector<ExchangeWave> waves;        ///< as many on every member
  ByteCount staging_bytes = 0;            ///< most staging that this member uses at once

  /// Set when there is no room: then nothing may be moved.
  struct Shortage {
    int member = 0;
    ByteCount bytes = 0;                      ///< that it would need at once
    std::vector<wire::ExchangePart> waiting;  ///< what it would have to keep
    bool operator==(const Shortage&) const = default;
  };
  std::optional<Shortage> shortage;
};

/// Orders the parts so that no member overwrites a part that any member has still to read, and so that no member keeps
/// more than `budget_bytes` of parts that it has read and may not write yet. Parts that nobody's write destroys something
/// for are read as soon as they can be; a part that would destroy others waits in staging until those have been read.
/// A pure function: every member that is given the same notes finds the same waves. `notes` are by member.
/// Requires: the parts that a note writes are distinct.
ExchangePlan plan_exchange(std::span<const wire::ExchangeNote> notes, ByteCount budget_bytes, int member);

}  // namespace shardwire
