// SPDX-License-Identifier: Apache-2.0
#include "move/engine.hpp"
#include "move/tuning.hpp"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

namespace shardwire::move {

void PayloadTable::arrived(transport::Incoming& incoming) const {
  const wire::PayloadHeader header = wire::decode_header(incoming.header());
  const auto after = engines_.upper_bound(header.request);
  if (after == engines_.begin() || !std::prev(after)->second->payload(header, incoming)) incoming.discard();
}

Engine::Engine(memory::CopyQueue& copies, std::shared_ptr<StagingPool> staging, const EngineOptions& options,
               Requests& requests, Events& events)
    : payloads_(options.payloads),
      staging_(std::move(staging)),
      shared_(std::make_shared<Shared>(
          Shared{.copies = copies,
                 .requests = requests,
                 .events = events,
                 .rate_limiter = RateLimiter(options.ingress_bytes_per_second),
                 .tally = Tally(options.now),
                 .depths = depths_for(options.costs, staging_->slot_bytes(), zcopy_message_bytes),
                 .gathered_bytes = options.costs.tuning().tcp.request_bytes,
                 .digests = options.digests})),
      local_(make_in_place(shared_, Method::local)),
      mapped_(make_in_place(shared_, Method::mapped)),
      reads_(make_reads(shared_, *staging_)),
      packed_(make_packed(shared_, *staging_)),
      zcopy_(make_zcopy(shared_)),
      collective_(make_collective(shared_, options.rounds)) {
}

Engine::~Engine() {
  payloads_.remove(*this);
}

void Engine::limit(std::uint32_t peer, const PeerLimits& limits) {
  auto& peers = shared_->peers;
  if (peers.size() <= peer) peers.resize(peer + std::size_t{1});
  peers[peer].limits = limits;
  payloads_.add(limits.first_request, *this);
  packed_->limit(peer, limits.max_pack_bytes);
  zcopy_->limit(peer, limits.max_pack_bytes);
}

MethodEngine& Engine::engine_of(const Transfer& transfer) const {
  switch (transfer.method) {
    case Method::local: return *local_;
    case Method::mapped: return *mapped_;
    case Method::read:
    case Method::sieved_read: return *reads_;
    case Method::zcopy: return *zcopy_;
    case Method::packed: return *packed_;
    case Method::collective: break;
  }
  return *collective_;
}

std::array<MethodEngine*, 6> Engine::all() const {
  // Methods that need the peer's work come first, so that peers work while this side copies.
  return {collective_.get(), packed_.get(), zcopy_.get(), reads_.get(), mapped_.get(), local_.get()};
}

void Engine::add(std::shared_ptr<const std::vector<Transfer>> transfers) {
  const auto& added = shared_->transfers.emplace_back(std::move(transfers));
  for (const Transfer& transfer : *added) shared_->tally.expect(transfer);
  for (const Transfer& transfer : *added) engine_of(transfer).add(transfer);
}

std::vector<TransferPart> Engine::drop(std::uint32_t peer, Mapped mapped) {
  Shared::Peer& dropped = shared_->peers.at(peer);
  dropped.dropped = true;
  dropped.keeps_mapped = mapped == Mapped::kept;
  for (MethodEngine* method : all()) {
    if (method == mapped_.get() && dropped.keeps_mapped) continue;
    shared_->give_back(peer, method->drop(peer));
  }
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

std::vector<TransferPart> Engine::refuse(std::uint32_t peer, std::uint64_t number) {
  const auto request = shared_->open.extract(number);
  if (request.empty()) return {};
  shared_->requests.forget(peer, number);
  request.mapped()->drop();
  return take_differing(peer);
}

std::vector<TransferPart> Engine::take_waiting(std::uint32_t peer) {
  for (MethodEngine* method : std::initializer_list<MethodEngine*>{packed_.get(), zcopy_.get(), reads_.get()}) {
    shared_->give_back(peer, method->drop(peer));
  }
  return take_differing(peer);
}

bool Engine::asks(std::uint32_t peer) const {
  const auto of_peer = [peer](const auto& open) { return open.second->peer() == peer; };
  return writes_from(peer) || std::ranges::any_of(shared_->open, of_peer);
}

std::optional<RateLimiter::WallClock::time_point> Engine::pump(RateLimiter::WallClock::time_point now) {
  if (shared_->stopped) return std::nullopt;
  const auto methods = all();
  const auto post = [&](MethodEngine* method) { return method->post(now); };
  while (std::any_of(methods.begin(), methods.end(), post) && !shared_->stopped) {  // a copy made at once may stop it
  }
  const auto retry = shared_->rate_limiter.retry_at();
  return retry > now ? retry : std::nullopt;  // an earlier time: what had to wait for it was dropped
}

bool Engine::payload(const wire::PayloadHeader& header, transport::Incoming& incoming) {
  const auto found = shared_->open.find(header.request);
  if (found == shared_->open.end()) return false;
  messages_are_copied_ = messages_are_copied_ && incoming.is_copied();
  const auto request = found->second;
  return request->payload(header, incoming);
}

void Engine::stop() {
  if (std::exchange(shared_->stopped, true)) return;
  for (MethodEngine* method : all()) method->stop();
  for (std::uint32_t peer = 0; peer < shared_->peers.size(); ++peer) {
    auto parts = drop(peer);
    shared_->peers[peer].unfinished = std::move(parts);  // for the next call of drop()
  }
}

bool Engine::idle() const {
  const auto methods = all();
  return std::all_of(methods.begin(), methods.end(), [](const MethodEngine* method) { return method->idle(); });
}

}  // namespace shardwire::move
