// SPDX-License-Identifier: Apache-2.0
#include "move/engine.hpp"

namespace shardwire::move {

namespace {

// Long enough that a thread switch does not matter, short enough that cancelling and pacing bite quickly.
constexpr ByteCount in_place_slice_bytes = 4u << 20;

}  // namespace

Engine::Engine(memory::Copier& copier, EngineOptions options, Hooks hooks)
    : pool_(options.staging_bytes, slot_bytes),
      shared_(std::make_shared<Shared>(Shared{.copier = copier,
                                              .pacer = Pacer(options.ingress_bytes_per_second),
                                              .tally = {},
                                              .changed = std::move(hooks.changed),
                                              .failed = std::move(hooks.failed)})),
      in_place_(make_in_place_way(shared_, shared_->pacer.slice_bytes(in_place_slice_bytes))),
      packed_(std::make_unique<PackedWay>(shared_, pool_, options.first_request, std::move(hooks.send_pack))) {
}

Engine::~Engine() = default;

void Engine::add(Transfer transfer) {
  shared_->tally.expect(transfer);
  switch (transfer.way) {
    case WayKind::local:
    case WayKind::mapped: in_place_->add(std::move(transfer)); return;
    case WayKind::packed: packed_->add(std::move(transfer)); return;
  }
}

std::optional<Pacer::Clock::time_point> Engine::pump() {
  if (shared_->stopped) return std::nullopt;
  const auto now = Pacer::Clock::now();
  while (packed_->post(now) || in_place_->post(now)) {
  }
  return shared_->pacer.retry_at();
}

}  // namespace shardwire::move
