// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "move/requests.hpp"
#include "restore/callbacks.hpp"
#include "restore/rounds_step.hpp"
#include "restore/transfers.hpp"

namespace shardwire::restore {

/// One restore's part in collective rounds: asks whether there are any, and offers its transfers to them.
/// Threads: loop thread only.
class RoundsShare final : public move::CollectiveRounds {
 public:
  /// `failed`: the restore cannot go on. Ownership: `step` is shared with the exchange that drives the rounds.
  RoundsShare(std::shared_ptr<RoundsStep> step, Callbacks::Failed failed);

  [[nodiscard]] const RoundsGroup& group() const { return step_->group(); }

  /// Asks all members whether they use rounds, unless that is known. `then` runs with the offers narrowed to the
  /// answer. Requires: called before begin().
  void ask(BoundTransfers bound, std::span<const Binding* const> bindings, std::function<void(BoundTransfers)> then);

  void begin(std::span<const move::Transfer* const> transfers, std::function<void(bool received)> ended) override;
  void stop() override;
  [[nodiscard]] bool writing() const override { return step_->writing(); }

 private:
  std::shared_ptr<RoundsStep> step_;
  Callbacks callbacks_;
  std::vector<int> members_;  // by peer
};

}  // namespace shardwire::restore
