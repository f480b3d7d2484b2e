// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "session/exchange/agreement.hpp"
#include "session/exchange/rounds.hpp"
#include "session/grouped_handover.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

/// What a session keeps from one exchange to the next: to make a group of NCCL takes a second.
struct KeptGroup {
  Bytes id{};
  int device = -1;
  OwnedRounds rounds;
};

/// What an exchange knows of rounds before it meets the others.
struct GroupSettings {
  int member = 0;
  std::optional<Way> way{};      ///< that was asked for here
  bool unasked = false;          ///< rounds may be taken although nobody has asked for them
  void* communicator = nullptr;  ///< of the caller, who keeps it
};

/// The group of one exchange: agreed on once, opened when it is needed.
/// Threads: one.
class ExchangeGroup {
 public:
  using Agree = std::function<std::vector<wire::ExchangeNote>(const wire::ExchangeNote&)>;

  /// Ownership: `kept` is borrowed.
  ExchangeGroup(GroupSettings settings, KeptGroup& kept) : settings_(settings), kept_(kept) {}
  /// What was not said to be worth keeping is given up.
  ~ExchangeGroup();
  ExchangeGroup(const ExchangeGroup&) = delete;
  ExchangeGroup& operator=(const ExchangeGroup&) = delete;

  /// What this member could do. `device`: where most of its memory lies, or memory::on_host.
  void offer(wire::ExchangeNote& note, int device) const;
  /// Errors: as agree_on_group().
  void choose(std::span<const wire::ExchangeNote> notes);

  /// All restores of all members are told of rounds, which some of them may need.
  [[nodiscard]] bool is_there() const { return choice_.collective != nullptr; }
  [[nodiscard]] bool is_inside() const { return choice_.rank_of(settings_.member) >= 0; }
  [[nodiscard]] bool is_forced() const { return choice_.forced; }
  [[nodiscard]] bool takes_rounds() const { return choice_.forced || needed_; }
  /// From now on, since some member has no direct path.
  void take_rounds() { needed_ = true; }
  [[nodiscard]] const GroupChoice& choice() const { return choice_; }
  [[nodiscard]] std::shared_ptr<GroupedHandover> handover() const;

  /// Joins the others, with a barrier where a new group is made. Before rounds(). Errors: as of `agree` and
  /// CollectiveTransport::open.
  void open(const Agree& agree);
  /// Requires: is_inside().
  [[nodiscard]] ExchangeRounds& rounds() const { return *rounds_; }
  /// All has gone well: the next exchange may take it over.
  void keep();

 private:
  GroupSettings settings_;
  KeptGroup& kept_;
  GroupChoice choice_;
  bool needed_ = false;
  bool opened_ = false;
  Bytes id_;
  OwnedRounds rounds_;
  bool well_ = false;
};

}  // namespace shardwire
