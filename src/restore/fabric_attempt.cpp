// SPDX-License-Identifier: Apache-2.0
#include "restore/fabric_attempt.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "restore/replies.hpp"

namespace shardwire::restore {

FabricAttempt::FabricAttempt(const Setup& setup, std::size_t fabric, Events events)
    : setup_(setup),
      fabric_(fabric),
      events_(std::move(events)),
      callbacks_(events_.failed),
      proof_timer_(setup.clock) {
}

FabricAttempt::~FabricAttempt() {
  if (proof_) --setup_.requests.unanswered;
}

void FabricAttempt::end() {
  callbacks_.end();
  proof_timer_.stop();
  if (std::exchange(proof_, nullptr)) --setup_.requests.unanswered;
}

void FabricAttempt::prepare(Round round) {
  setup_.binding.link->prepare(fabric_,
                               callbacks_.count(setup_.requests.unanswered, [this, round](const Error* why_not) {
                                 if (why_not != nullptr) return events_.excluded(*why_not);
                                 ask(round);
                               }));
}

void FabricAttempt::ask(Round round) {
  SourceLink& link = *setup_.binding.link;
  const wire::Bind request{setup_.requests.next++, setup_.lease, {link.handle(fabric_)}};
  const std::uint64_t sockets = request.fabrics.front().sockets;
  link.request(request.request, request,
               callbacks_.count(setup_.requests.unanswered,
                                [this, round, sockets](wire::Message& message) { answered(round, sockets, message); }));
}

void FabricAttempt::answered(Round round, std::uint64_t sockets, wire::Message& message) {
  const auto* failure = std::get_if<wire::Failure>(&message);
  if (failure != nullptr && failure->code == ErrorCode::unsupported) {
    return events_.excluded(Error(failure->code, failure->message));
  }
  // The source may be the first to know that the sockets have ended.
  const bool ended = failure != nullptr && failure->code == ErrorCode::peer_lost && sockets != 0;
  if (ended && round == Round::first) {
    setup_.binding.link->replace_sockets(fabric_, sockets);
    return prepare(Round::last);
  }
  if (failure != nullptr && setup_.tolerant) return events_.excluded(Error(failure->code, failure->message));
  bound(round, expect<wire::Bound>(message, setup_.binding.layout_rank));
}

void FabricAttempt::bound(Round round, wire::Bound& reply) {
  SourceLink& link = *setup_.binding.link;
  check_bound(setup_.binding, reply);
  std::vector<support::Descriptor> descriptors = link.take_descriptors(reply.request);
  bound_ = {.fabric = fabric_, .reply = std::move(reply)};
  try {
    bound_.channel = link.channel(fabric_, bound_.reply.addresses.front());
    if (bound_.channel) import_regions(std::move(descriptors));
  } catch (const Error& error) {
    const bool of_fabric = error.code() == ErrorCode::unsupported || error.code() == ErrorCode::out_of_resources;
    if (!of_fabric && !setup_.tolerant) throw;
    return events_.excluded(error);
  }
  if (!bound_.channel) {  // another operation received the sockets, and the connection has ended since
    if (round == Round::first) return prepare(Round::last);
    return events_.excluded(Error(ErrorCode::peer_lost, "the source closed the connection right after it was made"));
  }
  bound_.path = bound_.channel->endpoint->path({});  // some fabrics learn only now how they read
  const bool reads = bound_.word.region && !bound_.word.is_mapped() && bound_.path.read;
  if (!reads || bound_.channel->proven) return events_.bound(std::move(bound_));
  prove(round);
}

void FabricAttempt::import_regions(std::vector<support::Descriptor> descriptors) {
  const Binding& binding = setup_.binding;
  auto next = descriptors.begin();
  const auto import = [&](const wire::RegionHandle& handle) -> std::shared_ptr<transport::RemoteRegion> {
    if (handle.keys.empty()) return nullptr;
    const wire::RegionKey& key = handle.keys.front();
    if (descriptors.end() - next < key.descriptors) {
      throw Error(
          ErrorCode::transport_failed,
          fmt::format("source rank {} has not handed over the descriptors of a region", to_int(binding.layout_rank)),
          std::vector<Rank>{binding.layout_rank});
    }
    const auto end = next + key.descriptors;
    std::vector<support::Descriptor> own(std::make_move_iterator(next), std::make_move_iterator(end));
    next = end;
    bound_.keys.insert(key.key);
    return binding.link->region(fabric_, key.key, handle.size_bytes, std::move(own));
  };
  for (const wire::RegionHandle& region : bound_.reply.regions) bound_.regions.push_back(import(region));
  const auto& word = bound_.reply.word;
  if (word && is_generation_word(word->offset_bytes, word->region.size_bytes)) {
    bound_.word = {import(word->region), word->offset_bytes, bound_.channel};
  }
}

// Afterwards bytes arrive without the source's help. Both tries share one limit. A restore whose own deadline is near
// continues without the fabric, but does not rule it out for others.
void FabricAttempt::prove(Round round) {
  const Clock::Time now = setup_.clock.now();
  if (!proving_since_) {
    proving_since_ = now;
    proof_limit_ = std::min<Duration>({max_proof, setup_.patience, (setup_.deadline - now) / 2});
  }
  proof_ = std::make_shared<bool>(true);
  ++setup_.requests.unanswered;
  events_.proving();
  proof_timer_.start(*proving_since_ + proof_limit_ - now, callbacks_.wrap([this] { proof_late(); }));
  read_word(bound_.word, callbacks_.wrap([this, round, proof = std::weak_ptr<bool>(proof_)](
                                             const transport::Outcome& fault, std::uint64_t /*word*/) {
    if (!proof.expired()) proof_read(round, fault);
  }));
}

void FabricAttempt::proof_late() {
  proof_.reset();
  --setup_.requests.unanswered;
  const Error why(ErrorCode::transport_failed,
                  fmt::format("it has read nothing within {:.3g} s", seconds_of(proof_limit_)));
  if (proof_limit_ == max_proof && !bound_.channel->proven)
    setup_.binding.link->rule_out(fabric_, *bound_.channel, why);
  events_.excluded(why);
}

void FabricAttempt::proof_read(Round round, const transport::Outcome& fault) {
  proof_.reset();
  --setup_.requests.unanswered;
  proof_timer_.stop();
  if (!fault) {
    bound_.channel->proven = true;
    return events_.bound(std::move(bound_));
  }
  // A read of another operation over the same connection may have caused the failure.
  if (round == Round::first) return prepare(Round::last);
  events_.excluded(Error(fault->code, fault->message));
}

}  // namespace shardwire::restore
