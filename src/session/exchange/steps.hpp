// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "geometry/strides.hpp"
#include "session/exchange/barriers.hpp"
#include "session/exchange/calls.hpp"
#include "session/exchange/group.hpp"
#include "session/exchange/sums.hpp"

namespace shardwire {

/// The restores of an exchange, one after the other, and the rounds that bring what they hand over.
/// Threads: one.
class ExchangeSteps {
 public:
  static constexpr const char* publication_name = ".exchange";

  /// Ownership: all is borrowed.
  ExchangeSteps(const Catalog& held, const ExchangeOptions& options, const ExchangeCalls& calls,
                ExchangeBarriers& barriers, ExchangeSums& sums, BoxCache& boxes);

  /// What of this member's memory rounds may take, into the word that is said before choose_way(). `wanted_places`: of `wanted`.
  void offer(wire::ExchangeNote& note, const Catalog& wanted, const TensorPlaces& wanted_places);
  /// Where one member takes the way grouped all do: rounds are of all. `notes`: what all members have said.
  void choose_way(std::span<const wire::ExchangeNote> notes);
  /// As many on every member, each with this many bytes in staging beside it.
  void restore_all(const std::vector<Catalog>& catalogs, ByteCount staged_bytes);
  /// All has gone well: the next exchange may take the group over.
  void keep_group() { group_.keep(); }

  /// The least budget of all members. Requires: choose_way() was called.
  [[nodiscard]] ByteCount min_staging_bytes() const { return min_staging_bytes_; }
  [[nodiscard]] std::int64_t step() const { return static_cast<std::int64_t>(calls_.number); }

 private:
  /// One restore of each member, or none, whose remote bytes may come in rounds.
  struct Step {
    const Catalog* catalog = nullptr;           // null: this member only takes part for the others
    std::shared_ptr<GroupedHandover> handover;  // owners: see RestoreRun
    Restore running{};
  };

  void take_step(const Catalog* catalog, ByteCount staged_bytes);
  bool agree_on_rounds(Step& step);
  template <typename Answer>
  Answer answer_of(Step& step, std::optional<Answer> answer);
  ByteCount move_in_rounds(Step& step);
  void post_closed(const std::shared_ptr<GroupedHandover>& handover);
  ExchangeRounds::Totals run_rounds(move::GroupedJob job, Step& step, bool writes);
  std::optional<Error> why_stopped(const GroupedHandover& handover, bool writes);
  void ask_who_gave_up();
  move::GroupedPiece held_piece(const wire::ExchangeRequest& request);
  [[nodiscard]] RestoreOptions restore_options() const;

  const Catalog& held_;
  const ExchangeOptions& options_;
  const ExchangeCalls& calls_;
  ExchangeBarriers& barriers_;
  ExchangeSums& sums_;
  BoxCache& boxes_;
  TensorPlaces held_places_;         // where it may be asked for in rounds
  bool placed_ = false;              // that is known
  ByteCount min_staging_bytes_ = 0;  // of all members
  ExchangeGroup group_;
  ExchangeBarriers::Clock::time_point look_again_{};  // for news
  bool given_up_elsewhere_ = false;
};

}  // namespace shardwire
