// SPDX-License-Identifier: Apache-2.0
#include "restore/rounds_share.hpp"

#include <utility>

namespace shardwire::restore {

RoundsShare::RoundsShare(std::shared_ptr<RoundsStep> step, Callbacks::Failed failed)
    : step_(std::move(step)), callbacks_(std::move(failed)) {
}

void RoundsShare::ask(BoundTransfers bound, std::span<const Binding* const> bindings,
                      std::function<void(BoundTransfers)> then) {
  members_.clear();
  for (const Binding* binding : bindings) members_.push_back(binding->record.member);
  bool indirect = false;
  for (std::size_t i = 0; i < bound.offers.size(); ++i) {
    const move::Transfer& transfer = (*bound.transfers)[i];
    const Binding& binding = *bindings[transfer.peer];
    if (binding.is_own()) continue;
    const std::size_t position = binding.position_of(transfer.held_tensor);
    if (!may_come_in_rounds(binding, position, transfer.target_device, &group())) continue;
    bound.offers[i].add(move::Carrier::rounds, group().collective);
    indirect = indirect || !has_direct_path(bound.offers[i], binding);
  }
  auto decided = [then = std::move(then), bound = std::move(bound)](bool in_rounds) mutable {
    for (move::Offer& offer : bound.offers) {
      if (!offer.has(move::Carrier::rounds)) continue;
      if (in_rounds) {
        offer.keep_only(move::Carrier::rounds);
      } else {
        offer.remove(move::Carrier::rounds);
      }
    }
    then(std::move(bound));
  };
  if (!group().undecided) return decided(true);
  step_->report_paths(indirect, callbacks_.wrap(std::move(decided)));
}

void RoundsShare::begin(std::span<const move::Transfer* const> transfers, std::function<void(bool)> ended) {
  std::vector<RoundsStep::Item> items;
  for (const move::Transfer* transfer : transfers) {
    items.push_back({members_.at(transfer->peer),
                     transfer->held_tensor,
                     transfer->copy->run_bytes(),
                     {transfer->box, transfer->wanted, transfer->item_bytes, transfer->target}});
  }
  step_->offer(std::move(items), std::move(ended));
}

void RoundsShare::stop() {
  callbacks_.end();
  step_->stop();
}

}  // namespace shardwire::restore
