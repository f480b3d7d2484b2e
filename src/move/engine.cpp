// SPDX-License-Identifier: Apache-2.0
#include "move/engine.hpp"

#include <algorithm>
#include <utility>

namespace shardwire::move {

Engine::Engine(memory::CopyQueue& copies, std::shared_ptr<StagingPool> staging, const EngineOptions& options,
               Requests& requests, Events& events)
    : staging_(std::move(staging)),
      shared_(std::make_shared<Shared>(
          Shared{.copies = copies,
                 .requests = requests,
                 .events = events,
                 .pacer = Pacer(options.ingress_bytes_per_second),
                 .tally = {},
                 .depths = depths_for(options.costs, staging_->slot_bytes(), straight_message_bytes),
                 .gathered_bytes = options.costs.tcp().request_bytes,
                 .digests = options.digests})),
      local_(make_in_place(shared_, Way::local)),
      mapped_(make_in_place(shared_, Way::mapped)),
      reads_(make_reads(shared_, *staging_)),
      packed_(make_packed(shared_, *staging_)),
      straight_(make_straight(shared_)),
      gathered_(make_gathered(shared_)) {
}

Engine::~Engine() = default;

void Engine::limit(std::uint32_t peer, const PeerLimits& limits) {
  auto& peers = shared_->peers;
  if (peers.size() <= peer) peers.resize(peer + std::size_t{1});
  peers[peer].limits = limits;
  packed_->limit(peer, limits.max_pack_bytes);
  straight_->limit(peer, limits.max_pack_bytes);
  gathered_->limit(peer, limits.max_pack_bytes);
}

WayEngine& Engine::engine_of(const Transfer& transfer) const {
  switch (transfer.way) {
    case Way::local: return *local_;
    case Way::mapped: return *mapped_;
    case Way::read:
    case Way::over_read: return *reads_;
    case Way::straight: return shared_->peers.at(transfer.peer).limits.max_message_ranges > 1 ? *gathered_ : *straight_;
    case Way::packed:
    case Way::grouped: break;
  }
  return *packed_;
}

std::array<WayEngine*, 6> Engine::all() const {
  // What peers have to work for comes first, so that they do while this side copies.
  return {packed_.get(), straight_.get(), gathered_.get(), reads_.get(), mapped_.get(), local_.get()};
}

void Engine::add(std::shared_ptr<const std::vector<Transfer>> transfers) {
  const auto& added = shared_->transfers.emplace_back(std::move(transfers));
  for (const Transfer& transfer : *added) shared_->tally.expect(transfer);
  for (const Transfer& transfer : *added) {
    if (transfer.way != Way::grouped) engine_of(transfer).add(transfer);
  }
}

void Engine::brought(std::span<const Transfer* const> transfers, double digest_seconds) {
  shared_->digest_seconds += digest_seconds;
  for (const Transfer* transfer : transfers) shared_->tally.arrived(*transfer, bytes_of(*transfer));
}

std::vector<TransferPart> Engine::drop(std::uint32_t peer) {
  Shared::Peer& dropped = shared_->peers.at(peer);
  dropped.dropped = true;
  for (WayEngine* way : all()) shared_->give_back(peer, way->drop(peer));
  for (auto next = shared_->open.begin(); next != shared_->open.end();) {
    const auto [number, request] = *next;
    if (request->peer() != peer) {
      ++next;
      continue;
    }
    next = shared_->open.erase(next);
    shared_->requests.forget(peer, number);
    request->drop();
  }
  return std::exchange(dropped.unfinished, {});
}

std::optional<Pacer::Clock::time_point> Engine::pump() {
  if (shared_->stopped) return std::nullopt;
  const auto now = Pacer::Clock::now();
  const auto ways = all();
  const auto post = [&](WayEngine* way) { return way->post(now); };
  while (std::any_of(ways.begin(), ways.end(), post) && !shared_->stopped) {  // what is copied at once may stop it
  }
  return shared_->pacer.retry_at();
}

bool Engine::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  const auto found = shared_->open.find(header.request);
  if (found == shared_->open.end()) return false;
  const auto request = found->second;
  return request->payload(header, incoming);
}

void Engine::stop() {
  if (std::exchange(shared_->stopped, true)) return;
  for (const auto& [number, request] : std::exchange(shared_->open, {}))
    shared_->requests.forget(request->peer(), number);
}

bool Engine::idle() const {
  const auto ways = all();
  return std::all_of(ways.begin(), ways.end(), [](const WayEngine* way) { return way->idle(); });
}

}  // namespace shardwire::move
