// SPDX-License-Identifier: Apache-2.0
#include "session/restore_run.hpp"

namespace shardwire {

void RestoreRun::move_all() {
  enter(Stage::move);
  move::Engine::Hooks hooks;
  hooks.send_pack = [this](std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts) {
    wire::PackRequest message{request, peers_[peer].lease, {}};
    message.parts.reserve(parts.size());
    for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
    // A good answer is the payload; what can come here is a refusal.
    peers_[peer].link->request(request, message, while_running([this, peer](wire::Message& reply) {
                                 expect<wire::Goodbye>(reply, peers_[peer]);
                               }));
  };
  hooks.changed = [this] { pump(); };
  hooks.failed = [this](const std::exception_ptr& error) {
    fail(error);
    pump();
  };
  engine_ =
      std::make_unique<move::Engine>(core_.copier(),
                                     move::EngineOptions{.staging_bytes = options_.staging_bytes,
                                                         .ingress_bytes_per_second = options_.ingress_bytes_per_second,
                                                         // Far from our own few numbers.
                                                         .first_request = next_request_ + (std::uint64_t{1} << 40)},
                                     std::move(hooks));
  for (const auto& [peer, bytes] : engine_limits_) engine_->limit_pack(peer, bytes);
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
