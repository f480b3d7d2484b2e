// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include "session/restore/run.hpp"

namespace shardwire {

namespace {

// Each takes a plan and a connection anew. Another one than ours, withdrawn meanwhile, is the cause of few.
constexpr int max_fabric_refusals = 8;

}  // namespace

void RestoreRun::move_all() {
  enter(Stage::move);
  checks_.resize(peers_.size());
  if (repetition_.cached() != nullptr) staging_ = std::move(repetition_.cached()->staging);
  if (!staging_ || staging_->budget_bytes() != options_.staging_bytes) {
    staging_ = std::make_shared<move::StagingPool>(options_.staging_bytes, move::slot_bytes_for(core_.costs()));
  }
  staging_->forget_peak();
  const move::EngineOptions engine_options{.ingress_bytes_per_second = options_.ingress_bytes_per_second,
                                           .digests = options_.verify == Verify::digest,
                                           .costs = core_.costs()};
  move::Requests& requests = *this;
  move::Events& events = *this;
  engine_ = std::make_unique<move::Engine>(core_.copies(), staging_, engine_options, requests, events);
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    const Peer& from = peers_[peer];
    const transport::Path path = from.read_by ? from.connected[*from.read_by].path : transport::Path{};
    engine_->limit(static_cast<std::uint32_t>(peer), {.max_pack_bytes = from.max_pack_bytes,
                                                      .first_request = first_request(),
                                                      .max_ranges = path.max_read_ranges,
                                                      .max_read_bytes = path.max_read_bytes,
                                                      .max_reads = path.max_reads,
                                                      .max_message_ranges = from.message_ranges(),
                                                      .digest = digest_kind(from)});
  }
  engine_->add(transfers_);
  if (grouped_) offer_to_rounds();
  pump();
}

transport::Endpoint& RestoreRun::endpoint(std::uint32_t peer) {
  return *peers_[peer].connected[peers_[peer].read_by.value()].channel->endpoint;
}

void RestoreRun::ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts,
                     move::Answer answer) {
  wire::PackRequest message{.request = request,
                            .lease = peers_[peer].lease,
                            .parts = {},
                            .each = answer == move::Answer::each,
                            .digest = options_.verify == Verify::digest,
                            .gathered = answer == move::Answer::gathered,
                            .tree_digests = takes_tree_digests(peers_[peer])};
  if (message.lease == 0) {
    message.publication = options_.from;
    message.generation = peers_[peer].record.generation;
  }
  message.parts.reserve(parts.size());
  for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
  // A good answer is the payload; what can come here is a refusal.
  peers_[peer].link->request(request, message, while_running([this, peer](wire::Message& reply) {
                               const auto* failure = std::get_if<wire::Failure>(&reply);
                               if (failure != nullptr && message_channel_is_cut(peers_[peer]))
                                 return cut_off(peer, failure->message);
                               expect<wire::Goodbye>(reply, peers_[peer]);
                             }));
}

void RestoreRun::forget(std::uint32_t peer, std::uint64_t request) {
  peers_[peer].link->forget(request);
}

void RestoreRun::changed() {
  pump();
}

// A fabric that says "withdrawn" may say so of all that is read over one connection. Who has withdrawn it refuses the next
// lease on it.
void RestoreRun::peer_failed(std::uint32_t peer, const transport::Fault& fault) {
  if (fault.code == ErrorCode::cancelled) return cut_off(peer, fault.message);
  const Rank source = peers_[peer].layout_rank;
  refused_by_fabric_ = fault.code == ErrorCode::withdrawn;
  const bool once_more = !refused_by_fabric_ || ++fabric_refusals_ < max_fabric_refusals;
  failed(std::make_exception_ptr(Error(once_more ? fault.code : ErrorCode::transport_failed,
                                       fmt::format("source rank {}: {}", to_int(source), fault.message),
                                       std::vector<Rank>{source})));
  refused_by_fabric_ = false;
}

// Another restore has cut the connection that both use: all that this one has lost is time, unless it may not begin anew.
void RestoreRun::cut_off(std::uint32_t peer, const std::string& why) {
  if (!begin_anew()) {
    const Rank source = peers_[peer].layout_rank;
    fail(std::make_exception_ptr(Error(ErrorCode::transport_failed,
                                       fmt::format("source rank {}: {}", to_int(source), why),
                                       std::vector<Rank>{source})));
  }
  pump();
}

void RestoreRun::payloads_ended(std::uint32_t peer) {
  const char* const why = "the connection that its payloads come over has ended";
  if (message_channel_is_cut(peers_[peer]) || ++fabric_refusals_ < max_fabric_refusals) return cut_off(peer, why);
  peer_failed(peer, {ErrorCode::peer_lost, why});
}

bool RestoreRun::message_channel_is_cut(const Peer& peer) {
  return peer.sent_by && peer.connected[*peer.sent_by].channel->cut;
}

void RestoreRun::failed(const std::exception_ptr& error) {
  fail(error);
  pump();
}

void RestoreRun::digested(const move::TransferPart& part, const memory::Digest128& digest) {
  guarded([&] { check_later(part, digest); });
}

void RestoreRun::differs(const move::TransferPart& part) {
  guarded([&] { differ(std::span(&part, 1)); });
  pump();
}

void RestoreRun::pump() {
  if (stage_ == Stage::stopping) {
    if (quiet()) stopped();
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
