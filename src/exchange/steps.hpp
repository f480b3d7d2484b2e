// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "exchange/barriers.hpp"
#include "exchange/context.hpp"
#include "exchange/group.hpp"
#include "exchange/sums.hpp"
#include "geometry/strides.hpp"

namespace shardwire {

/// The restores of an exchange, one after the other, with the rounds for the pieces they hand over.
/// Threads: one.
class ExchangeSteps {
 public:
  static constexpr const char* publication_name = ".exchange";

  /// Ownership: borrows all arguments.
  ExchangeSteps(const Catalog& held, const ExchangeOptions& options, const ExchangeSetup& setup,
                const ExchangeContext& context, ExchangeBarriers& barriers, ExchangeSums& sums, BoxCache& boxes);

  /// Adds this member's memory for rounds to the note that is sent before choose_method(). `wanted_places`: of
  /// `wanted`.
  void offer(wire::ExchangeNote& note, const Catalog& wanted, const TensorPlaces& wanted_places);
  /// If one member uses the collective method, all do, since all take part in a round. `notes`: those of all members.
  void choose_method(std::span<const wire::ExchangeNote> notes);
  /// Runs as many restores as the member with most; each with this many additional bytes in staging.
  void restore_all(const std::vector<Catalog>& catalogs, ByteCount staged_bytes);
  /// Call it once all restores of this wave are over: the bytes that all members have read may be overwritten then. A
  /// member that was lost reads nothing more, so the others do not wait for it.
  void finish_wave();
  /// Keeps the group for the next exchange; call it after success.
  void keep_group() { group_.keep(); }

  /// The smallest budget of all members. Requires: choose_method() was called.
  [[nodiscard]] ByteCount min_staging_bytes() const { return min_staging_bytes_; }
  [[nodiscard]] std::int64_t step() const { return static_cast<std::int64_t>(barriers_.number()); }

 private:
  /// One restore of each member, or none; its remote bytes may come in rounds.
  struct Step {
    const Catalog* catalog = nullptr;    // null: this member only takes part for the others
    std::shared_ptr<RoundsStep> rounds;  // owners: this, the restore and the rounds
    Restore running{};
  };

  void run_restores(const std::vector<Catalog>& catalogs, ByteCount staged_bytes);
  [[nodiscard]] Error in_terms_of_members(const Error& error) const;
  /// `rounds`: take over bytes of other members; null: there are none.
  Restore restore(const Catalog& catalog, std::shared_ptr<RoundsStep> rounds);
  void take_step(const Catalog* catalog, ByteCount staged_bytes);
  bool agree_on_rounds(Step& step);
  template <typename Reply>
  Reply answer_of(Step& step, std::optional<Reply> answer);
  ByteCount move_in_rounds(Step& step);
  ExchangeRounds::Totals run_rounds(move::CollectiveJob job, Step& step, bool writes);
  move::CollectivePiece held_piece(const wire::ExchangeRequest& request);
  [[nodiscard]] std::optional<Method> method() const;  // of its restores
  [[nodiscard]] RestoreOptions restore_options() const;

  const Catalog& held_;
  const ExchangeOptions& options_;
  const ExchangeSetup& setup_;
  const ExchangeContext& context_;
  ExchangeBarriers& barriers_;
  ExchangeSums& sums_;
  BoxCache& boxes_;
  TensorPlaces held_places_;         // place in which rounds may request it
  bool placed_ = false;              // held_places_ is known
  std::map<Rank, int> holders_;      // member of each layout rank that is held
  ByteCount min_staging_bytes_ = 0;  // of all members
  ExchangeGroup group_;
};

}  // namespace shardwire
