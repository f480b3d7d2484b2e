// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exchange/agreement.hpp"
#include "exchange/rounds.hpp"
#include "restore/rounds_step.hpp"
#include "shardwire/costs.hpp"
#include "shardwire/types.hpp"

namespace shardwire {

/// Group kept from one exchange to the next, because creating an NCCL group takes a second.
struct KeptGroup {
  Bytes id{};
  int device = -1;
  OwnedRounds rounds;
};

/// One exchange of a session.
struct ExchangeSetup {
  int member = 0;
  std::optional<Method> method{};  ///< requested on this member: by the options, else by SHARDWIRE_METHOD
  bool rounds_unasked = false;     ///< rounds are allowed without a request
  Collectives collectives = transport::registered_collectives();  ///< of the session
  KeptGroup* kept = nullptr;                                      ///< state that the session keeps between exchanges
};

/// The group of one exchange: agreed on once, opened when first needed.
/// Threads: one.
class ExchangeGroup {
 public:
  using Agree = std::function<std::vector<wire::ExchangeNote>(const wire::ExchangeNote&)>;

  /// `communicator`: the caller's; null: none. Ownership: borrows both arguments.
  ExchangeGroup(const ExchangeSetup& setup, void* communicator)
      : setup_(setup), communicator_(communicator), kept_(*setup.kept) {}
  /// Closes the group unless keep() was called.
  ~ExchangeGroup();
  ExchangeGroup(const ExchangeGroup&) = delete;
  ExchangeGroup& operator=(const ExchangeGroup&) = delete;

  /// Adds this member's abilities to `note`. `device`: the device with most of its memory, or memory::on_host.
  void offer(wire::ExchangeNote& note, int device) const;
  /// Errors: as agree_on_group().
  void choose(std::span<const wire::ExchangeNote> notes);

  /// All restores of all members register for rounds, since some of them may need them.
  [[nodiscard]] bool is_there() const { return choice_.collective != nullptr; }
  [[nodiscard]] bool is_inside() const { return choice_.rank_of(setup_.member) >= 0; }
  [[nodiscard]] bool is_forced() const { return choice_.forced; }
  [[nodiscard]] bool takes_rounds() const { return choice_.forced || needed_; }
  /// Starts using rounds, because some member has no direct path.
  void take_rounds() { needed_ = true; }
  [[nodiscard]] const GroupChoice& choice() const { return choice_; }
  /// Requires: is_there().
  [[nodiscard]] RoundsGroup facts() const;

  /// Joins the group, with a barrier if a new one is created. Call it before rounds(). Errors: as of `agree` and
  /// CollectiveTransport::open.
  void open(const Agree& agree);
  /// Requires: is_inside().
  [[nodiscard]] ExchangeRounds& rounds() const { return *rounds_; }
  /// Keeps the group for the next exchange; call it after success.
  void keep();

 private:
  const ExchangeSetup& setup_;
  void* communicator_;
  KeptGroup& kept_;
  GroupChoice choice_;
  bool needed_ = false;
  bool opened_ = false;
  Bytes id_;
  OwnedRounds rounds_;
  bool well_ = false;
};

}  // namespace shardwire
