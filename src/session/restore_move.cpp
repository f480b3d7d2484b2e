// SPDX-License-Identifier: Apache-2.0
#include "session/restore_run.hpp"

namespace shardwire {

void RestoreRun::move_all() {
  enter(Stage::move);
  checks_.resize(peers_.size());
  const move::EngineOptions engine_options{.staging_bytes = options_.staging_bytes,
                                           .slot_bytes = move::slot_bytes_for(core_.costs()),
                                           .ingress_bytes_per_second = options_.ingress_bytes_per_second,
                                           .first_request = next_request_ + (std::uint64_t{1} << 40),  // far from ours
                                           .digests = options_.verify == Verify::digest};
  move::Engine::Hooks hooks;
  hooks.changed = [this] { pump(); };
  hooks.failed = [this](const std::exception_ptr& error) {
    fail(error);
    pump();
  };
  hooks.digested = [this](const move::Part& part, const memory::Digest128& digest) {
    guarded([&] { digested(part, digest); });
  };
  hooks.differs = [this](const move::Part& part) {
    guarded([&] { differ(std::span(&part, 1)); });
    pump();
  };
  hooks.endpoint = [this](std::uint32_t peer) -> transport::Endpoint& { return peers_[peer].link->endpoint(); };
  hooks.ask = [this](std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts, bool each) {
    wire::PackRequest message{request, peers_[peer].lease, {}, each, options_.verify == Verify::digest};
    message.parts.reserve(parts.size());
    for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
    // A good answer is the payload; what can come here is a refusal.
    peers_[peer].link->request(request, message, while_running([this, peer](wire::Message& reply) {
                                 expect<wire::Goodbye>(reply, peers_[peer]);
                               }));
  };
  engine_ = std::make_unique<move::Engine>(core_.copier(), engine_options, std::move(hooks));
  for (const auto& [peer, bytes] : engine_limits_) engine_->limit(peer, bytes);
  for (const move::Transfer& transfer : transfers_) engine_->add(transfer);
  pump();
}

void RestoreRun::pump() {
  if (stage_ == Stage::stopping) {
    if (quiet()) finish();
    return;
  }
  if (stage_ != Stage::move) return;
  guarded([this] {
    const auto retry = engine_->pump();
    if (engine_->complete()) return verify();
    if (retry) pace_.start(*retry - Clock::now(), [this] { pump(); });
  });
}

}  // namespace shardwire
