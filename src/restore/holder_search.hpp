// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "restore/callbacks.hpp"
#include "restore/context.hpp"
#include "restore/descriptions.hpp"
#include "restore/publishers.hpp"
#include "restore/state.hpp"
#include "restore/target.hpp"

namespace shardwire::restore {

/// A plan of what is missing over later ranks, too.
struct LaterPlan {
  std::shared_ptr<Planning> planning;  ///< null: some of it has no holder that is left. Numbers holders as before
  std::vector<PieceBox> missing;       ///< of this plan
};

/// Waits until every missing box of an unfinished restore has a holder: one that still publishes the planned step,
/// publishes a planned rank of that step again or a second time, or publishes a rank of it that the plan did not know.
/// Threads: loop thread only.
class HolderSearch {
 public:
  struct Events {
    std::function<void()> found;  ///< once: every missing box has a holder
    std::function<void(const std::exception_ptr& error)> failed;
  };
  /// `loss`: its failure once nobody is left who may become such a holder; null: it waits until the deadline all the same.
  /// Ownership: borrows the context and target.
  HolderSearch(const Context& context, const Target& target, std::unique_ptr<Unfinished> unfinished,
               std::exception_ptr loss, Events events);
  /// Whether others than the holders that the plan names may hold something of it.
  [[nodiscard]] static bool may_find(const Context& context, const Target& target, const Planning& planning);

  void start();
  /// The publications or members have changed.
  void directory_changed();
  /// Ignores further changes.
  void stop();

  /// The planning of the result has the holders that were found; `unavailable` names the lost ones.
  [[nodiscard]] std::unique_ptr<Unfinished> take() { return std::move(unfinished_); }
  [[nodiscard]] ByteCount missing_bytes() const { return missing_bytes_; }
  /// Error for a deadline that passes now.
  [[nodiscard]] Error late() const;
  /// See awaited_text().
  [[nodiscard]] std::string awaited() const;

 private:
  using Records = std::vector<wire::PublicationRecord>;

  void look();
  void plan_with_later(const Records& later);
  void planned(const LaterPlan& made);
  [[nodiscard]] bool may_find_more() const;
  void note_lost(const Records& published);
  void refuse_others(const Records& published) const;
  [[nodiscard]] std::vector<Gap> without_holder() const;
  /// Ranks of the plan that hold missing boxes without a holder; ascending.
  [[nodiscard]] std::vector<Rank> wanted_ranks() const;

  const Context& context_;
  const Target& target_;
  RosterView roster_;
  std::unique_ptr<Unfinished> unfinished_;
  const ByteCount missing_bytes_;
  std::exception_ptr loss_;
  Events events_;
  Callbacks callbacks_;
  Descriptions descriptions_;
  Timer keepers_;
  Clock::Time began_;
  Records tried_;  // later ranks that do not hold all that is missing
  bool planning_now_ = false;
  bool found_ = false;
};

}  // namespace shardwire::restore
