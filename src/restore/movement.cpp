// SPDX-License-Identifier: Apache-2.0
#include "restore/movement.hpp"

#include <fmt/core.h>

#include <utility>

namespace shardwire::restore {

Movement::Movement(Services& services, Listener& listener, Owner& owner, const RestoreOptions& options,
                   const Planning& planning, const Wanted& wanted, Sources sources, move::CollectiveRounds* rounds,
                   std::shared_ptr<move::StagingPool> staging)
    : services_(services),
      listener_(listener),
      owner_(owner),
      options_(options),
      planning_(planning),
      wanted_(wanted),
      sources_(sources),
      callbacks_([this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      retry_(services.clock()),
      staging_(std::move(staging)),
      checks_(sources.size()) {
  if (!staging_ || staging_->budget_bytes() != options.staging_bytes) {
    staging_ = std::make_shared<move::StagingPool>(options.staging_bytes, move::slot_bytes_for(services.costs()));
  }
  staging_->forget_peak();
  move::Requests& requests = *this;
  move::Events& events = *this;
  const move::EngineOptions engine_options{.ingress_bytes_per_second = options.ingress_bytes_per_second,
                                           .digests = options.verify == Verify::digest,
                                           .costs = services.costs(),
                                           .rounds = rounds};
  engine_ = std::make_unique<move::Engine>(services.copies(), staging_, engine_options, requests, events);
  SourceWatch::Listener& listener_of_watch = *this;
  watch_ = std::make_unique<SourceWatch>(services, listener_of_watch, options.from, sources, *engine_,
                                         [this](const std::exception_ptr& error) { owner_.on_failed(error); });
}

Movement::~Movement() = default;

void Movement::start(std::shared_ptr<const std::vector<move::Transfer>> transfers) {
  transfers_ = std::move(transfers);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    const auto& read_by = binding.path.read_by;
    const transport::Path path = read_by ? binding.connected[*read_by].path : transport::Path{};
    engine_->limit(static_cast<std::uint32_t>(i), {.max_pack_bytes = binding.max_pack_bytes,
                                                   .first_request = services_.first_request(),
                                                   .max_ranges = path.max_read_ranges,
                                                   .max_read_bytes = path.max_read_bytes,
                                                   .max_reads = path.max_reads,
                                                   .max_message_ranges = binding.max_message_ranges()});
    sources_[i]->begin_moving();
  }
  engine_->add(transfers_);
  advance();
}

void Movement::advance() {
  if (stopped_) return owner_.on_quieter();
  if (moved_) return;
  callbacks_.run([this] {
    const auto retry = engine_->pump(services_.clock().now());
    if (stopped_) return;
    if (engine_->complete()) {
      moved_ = true;
      retry_.stop();
      return listener_.on_moved();
    }
    if (retry) retry_.start(*retry - services_.clock().now(), [this] { advance(); });
  });
}

// --- requests and events of the engine ---

transport::Endpoint& Movement::endpoint(std::uint32_t peer) {
  const Binding& binding = sources_[peer]->binding();
  return *binding.connected[binding.path.read_by.value()].channel->endpoint;
}

void Movement::ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts, move::Answer answer) {
  wire::PackRequest message{.request = request,
                            .lease = 0,
                            .parts = {},
                            .each = answer == move::Answer::each,
                            .digest = options_.verify == Verify::digest,
                            .gathered = answer == move::Answer::gathered};
  message.parts.reserve(parts.size());
  for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
  Source& source = *sources_[peer];
  source.requests().ask_for_payload(std::move(message), callbacks_.wrap([this, &source](const std::string& why) {
    owner_.on_path_lost(source, PathLoss::aborted, why);
    advance();
  }));
}

void Movement::forget(std::uint32_t peer, std::uint64_t request) {
  sources_[peer]->binding().link->forget(request);
}

void Movement::failed(const std::exception_ptr& error) {
  owner_.on_failed(error);
  advance();
}

void Movement::peer_failed(std::uint32_t peer, const transport::Fault& fault) {
  Source& source = *sources_[peer];
  if (fault.code == ErrorCode::cancelled) {
    owner_.on_path_lost(source, PathLoss::aborted, fault.message);
  } else if (fault.code == ErrorCode::withdrawn) {
    owner_.on_path_lost(source, PathLoss::refused, fault.message);
  } else {
    owner_.on_failed(std::make_exception_ptr(
        Error(fault.code, fmt::format("source rank {}: {}", to_int(source.rank()), fault.message),
              std::vector<Rank>{source.rank()})));
  }
  advance();
}

void Movement::digested(const move::TransferPart& part, const memory::Digest128& digest) {
  callbacks_.run([&] { checks_.add(part, digest); });
}

void Movement::differs(const move::TransferPart& part) {
  const Source& source = *sources_[part.transfer->peer];
  failed(std::make_exception_ptr(differing_parts(std::span(&part, 1), planning_, *wanted_.manifest,
                                                 wanted_.catalog->layout_rank(), source.rank())));
}

void Movement::compare_digests(std::function<void()> done) {
  const auto differ = [this](std::span<const move::TransferPart> parts) {
    throw differing_parts(parts, planning_, *wanted_.manifest, wanted_.catalog->layout_rank(),
                          sources_[parts.front().transfer->peer]->rank());
  };
  checks_.ask(sources_, differ, std::move(done));
}

// --- sources whose bytes do not arrive ---

void Movement::look_after_sources() {
  if (!stopped_ && !moved_ && transfers_) watch_->look(transfers());
}

void Movement::on_channel_ended(Source& source) {
  const bool aborted = source.binding().message_channel()->aborted;
  owner_.on_path_lost(source, aborted ? PathLoss::aborted : PathLoss::ended,
                      "the connection that its payloads come over has ended");
  advance();
}

std::span<const move::Transfer> Movement::transfers() const {
  return transfers_ ? std::span<const move::Transfer>(*transfers_) : std::span<const move::Transfer>();
}

std::vector<Gap> Movement::missing() const {
  std::vector<Gap> gaps;
  const std::vector<Piece>& pieces = planning_.plan.pieces;
  for (std::uint32_t i = 0; i < pieces.size(); ++i) {
    if (tally().complete(i)) continue;
    gaps.push_back(
        gap_of(planning_, *wanted_.manifest, i, planning_.plan.box(pieces[i]), wanted_.catalog->layout_rank()));
  }
  return gaps;
}

// --- the end ---

void Movement::stop() {
  stopped_ = true;
  retry_.stop();
  watch_->stop();
  engine_->stop();
}

bool Movement::quiet(bool fabrics_dead) const {
  return fabrics_dead ? engine_->copies_idle() : engine_->idle();
}

// An aborted link is not reused: a later restore creates a new one. Links stay for new plans, of this and of other
// restores, which use other channels: a source may send over any of them.
void Movement::abort_connections(bool keeps_links) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    if (!binding.link || !engine_->writes_from(static_cast<std::uint32_t>(i))) continue;
    for (const ConnectedFabric& one : binding.connected) one.channel->give_up();
    binding.link->abort_channels();
    if (keeps_links || binding.link->watchers() > 1) continue;
    binding.link->abort(Error(ErrorCode::cancelled, "a restore that was stopped has cut the connection"));
  }
}

}  // namespace shardwire::restore
