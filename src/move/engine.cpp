// SPDX-License-Identifier: Apache-2.0
#include "move/engine.hpp"

namespace shardwire::move {

Engine::Engine(memory::Copier& copier, std::shared_ptr<StagingPool> staging, const EngineOptions& options, Hooks hooks)
    : staging_(std::move(staging)),
      shared_(std::make_shared<Shared>(
          Shared{.copier = copier,
                 .pacer = Pacer(options.ingress_bytes_per_second),
                 .tally = {},
                 .depths = depths_for(options.costs, staging_->slot_bytes(), straight_message_bytes),
                 .digests = options.digests,
                 .changed = std::move(hooks.changed),
                 .failed = std::move(hooks.failed),
                 .digested = std::move(hooks.digested),
                 .differs = std::move(hooks.differs),
                 .endpoint = std::move(hooks.endpoint),
                 .ask = std::move(hooks.ask)})),
      local_(make_in_place(shared_, Way::local)),
      mapped_(make_in_place(shared_, Way::mapped)),
      reads_(make_reads(shared_, *staging_)),
      packed_(make_packed(shared_, *staging_)),
      straight_(make_straight(shared_)) {
}

Engine::~Engine() = default;

void Engine::limit(std::uint32_t peer, const PeerLimits& limits) {
  auto& all = shared_->limits;
  if (all.size() <= peer) all.resize(peer + std::size_t{1});
  all[peer] = limits;
  packed_->limit(peer, limits.max_pack_bytes);
  straight_->limit(peer, limits.max_pack_bytes);
}

WayEngine& Engine::engine_of(Way way) const {
  switch (way) {
    case Way::local: return *local_;
    case Way::mapped: return *mapped_;
    case Way::read:
    case Way::over_read: return *reads_;
    case Way::straight: return *straight_;
    case Way::packed:
    case Way::grouped: break;
  }
  return *packed_;
}

void Engine::add(std::shared_ptr<const std::vector<Transfer>> transfers) {
  shared_->transfers = std::move(transfers);
  for (const Transfer& transfer : *shared_->transfers) shared_->tally.expect(transfer);
  for (const Transfer& transfer : *shared_->transfers) engine_of(transfer.way).add(transfer);
}

std::optional<Pacer::Clock::time_point> Engine::pump() {
  if (shared_->stopped) return std::nullopt;
  const auto now = Pacer::Clock::now();
  // What peers have to work for is asked first, so that they do while this side copies.
  while (packed_->post(now) || straight_->post(now) || reads_->post(now) || mapped_->post(now) || local_->post(now)) {
  }
  return shared_->pacer.retry_at();
}

bool Engine::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  return packed_->payload(header, incoming) || straight_->payload(header, incoming);
}

std::optional<MessageWay::Asked> Engine::asked(std::uint64_t request) const {
  const auto found = packed_->asked(request);
  return found ? found : straight_->asked(request);
}

bool Engine::idle() const {
  return local_->idle() && mapped_->idle() && reads_->idle() && packed_->idle() && straight_->idle();
}

}  // namespace shardwire::move
