// SPDX-License-Identifier: Apache-2.0
#include "restore/source_fabrics.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

namespace shardwire::restore {

/// Binds the source over one fabric: prepares the fabric's sockets, requests the source's handles, imports
/// them, and reads the generation word once, since a reachable network may still carry no data. Tries a second time if
/// the sockets had ended before use, or if a read failed that other operations may have spoilt.
class SourceFabrics::Opening {
 public:
  /// `patience`: limit of the first read, beside max_proof and half of the time to the deadline.
  Opening(SourceFabrics& of, std::size_t fabric, Duration patience)
      : of_(of),
        fabric_(fabric),
        patience_(patience),
        requests_(of.requests_.count()),
        callbacks_(of.events_.failed),
        proof_timer_(of.context_.clock) {}
  ~Opening();
  void start() { prepare(Round::first); }
  /// Takes no further answer and tells its source nothing more. It may be on the call stack.
  void end();

 private:
  enum class Round : std::uint8_t { first, last };

  void prepare(Round round);
  void ask(Round round);
  void answered(Round round, std::uint64_t sockets, wire::Message& message);
  void bound(Round round, wire::Bound& reply);
  void import_regions(std::vector<support::Descriptor> descriptors);
  void connected();
  void prove(Round round);
  void proof_late();
  void proof_read(Round round, const transport::Outcome& fault);

  SourceFabrics& of_;
  std::size_t fabric_;
  Duration patience_;
  const bool tolerant_ = of_.options_.connect == Connect::every;  // any failure excludes this fabric, not the source
  RequestCount& requests_;                                        // of the source
  Callbacks callbacks_;
  BoundFabric bound_;
  Timer proof_timer_;
  std::optional<Clock::Time> proving_since_;  // the first try
  Duration proof_limit_{};                    // of both tries
  std::shared_ptr<bool> proof_;  // while the first read is under way; owner: this; its completion holds a weak one
};

SourceFabrics::SourceFabrics(const SourceContext& context, Events events, const PathInputs& paths,
                             const Options& options, Binding& binding, SourceRequests& requests)
    : context_(context),
      events_(std::move(events)),
      paths_(paths),
      options_(options),
      binding_(binding),
      requests_(requests) {
}

SourceFabrics::~SourceFabrics() = default;

void SourceFabrics::restart() {
  openings_.clear();
  binding_.unbind();
  if (options_.connect == Connect::none) return candidates_.clear();
  const auto common = common_fabrics(context_.fabrics.open, binding_.link->peer().fabrics, binding_.link->is_local());
  candidates_.assign(common.begin(), common.end());
  std::erase_if(candidates_, [this](std::size_t fabric) { return binding_.failed_fabrics.contains(fabric); });
}

bool SourceFabrics::connect_next() {
  if (options_.connect == Connect::needed) {
    const bool sends =
        std::ranges::any_of(binding_.connected, [](const ConnectedFabric& one) { return one.path.message; });
    const int worst = worst_path(binding_, paths_);
    std::erase_if(candidates_, [&](std::size_t fabric) {
      return !worth_connecting(context_.fabrics.preference(fabric), worst, options_.wants_messages && !sends);
    });
  }
  if (candidates_.empty()) return false;
  const std::size_t fabric = candidates_.front();
  candidates_.pop_front();
  openings_.push_back(std::make_unique<Opening>(*this, fabric, candidates_.empty() ? max_proof : options_.patience));
  openings_.back()->start();
  return true;
}

// A failed fabric is fatal only if no other is left.
void SourceFabrics::exclude(std::size_t fabric, const Error& why) {
  binding_.excluded[fabric] = why.what();
  binding_.lacked_resources = binding_.lacked_resources || why.code() == ErrorCode::out_of_resources;
  binding_.peer_ended = binding_.peer_ended || why.code() == ErrorCode::peer_lost;
  context_.log(LogLevel::info, fmt::format("source rank {} is not reached over {}: {}", to_int(binding_.layout_rank),
                                           context_.fabrics.name(fabric), why.what()));
  events_.changed(Report::excluded);
}

void SourceFabrics::choose_path() {
  if (options_.connect == Connect::needed) binding_.path = decide_path(binding_, paths_);
}

// The destination may have moved to other memory since they were connected.
bool SourceFabrics::suffice() const {
  const bool reaches = !paths_.reach.wants_devices() || worst_path(binding_, paths_) != no_path;
  return binding_.still_connected() && (binding_.path.sent_by || (!options_.wants_messages && reaches));
}

void SourceFabrics::end() {
  for (const auto& opening : openings_) opening->end();
}

// --- one fabric ---

SourceFabrics::Opening::~Opening() {
  if (proof_) --requests_.unanswered;
}

void SourceFabrics::Opening::end() {
  callbacks_.end();
  proof_timer_.stop();
  if (std::exchange(proof_, nullptr)) --requests_.unanswered;
}

void SourceFabrics::Opening::prepare(Round round) {
  of_.binding_.link->prepare(fabric_, callbacks_.count(requests_.unanswered, [this, round](const Error* why_not) {
    if (why_not != nullptr) return of_.exclude(fabric_, *why_not);
    ask(round);
  }));
}

void SourceFabrics::Opening::ask(Round round) {
  SourceLink& link = *of_.binding_.link;
  const wire::Bind request{requests_.next++, of_.requests_.lease(), {link.handle(fabric_)}};
  const std::uint64_t sockets = request.fabrics.front().sockets;
  link.request(request.request, request,
               callbacks_.count(requests_.unanswered,
                                [this, round, sockets](wire::Message& message) { answered(round, sockets, message); }));
}

void SourceFabrics::Opening::answered(Round round, std::uint64_t sockets, wire::Message& message) {
  const auto* failure = std::get_if<wire::Failure>(&message);
  if (failure != nullptr && failure->code == ErrorCode::unsupported) {
    return of_.exclude(fabric_, Error(failure->code, failure->message));
  }
  // The source may be the first to know that the sockets have ended.
  const bool ended = failure != nullptr && failure->code == ErrorCode::peer_lost && sockets != 0;
  if (ended && round == Round::first) {
    of_.binding_.link->replace_sockets(fabric_, sockets);
    return prepare(Round::last);
  }
  if (failure != nullptr && tolerant_) return of_.exclude(fabric_, Error(failure->code, failure->message));
  bound(round, expect<wire::Bound>(message, of_.binding_.layout_rank));
}

void SourceFabrics::Opening::bound(Round round, wire::Bound& reply) {
  SourceLink& link = *of_.binding_.link;
  check_bound(of_.binding_, reply);
  std::vector<support::Descriptor> descriptors = link.take_descriptors(reply.request);
  bound_ = {.fabric = fabric_, .reply = std::move(reply)};
  try {
    bound_.channel = link.channel(fabric_, bound_.reply.addresses.front());
    if (bound_.channel) import_regions(std::move(descriptors));
  } catch (const Error& error) {
    const bool of_fabric = error.code() == ErrorCode::unsupported || error.code() == ErrorCode::out_of_resources;
    if (!of_fabric && !tolerant_) throw;
    return of_.exclude(fabric_, error);
  }
  if (!bound_.channel) {  // another operation received the sockets, and the connection has ended since
    if (round == Round::first) return prepare(Round::last);
    return of_.exclude(fabric_,
                       Error(ErrorCode::peer_lost, "the source closed the connection right after it was made"));
  }
  bound_.path = bound_.channel->endpoint->path({});  // some fabrics learn only now how they read
  const bool reads = bound_.word.region && !bound_.word.is_mapped() && bound_.path.read;
  if (!reads || bound_.channel->proven) return connected();
  prove(round);
}

void SourceFabrics::Opening::import_regions(std::vector<support::Descriptor> descriptors) {
  const Binding& binding = of_.binding_;
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

void SourceFabrics::Opening::connected() {
  add_fabric(of_.binding_, std::move(bound_), of_.paths_);
  of_.events_.changed(Report::bound);
}

// Afterwards bytes arrive without the source's help. Both tries share one limit. A restore whose own deadline is near
// continues without the fabric, but does not rule it out for others.
void SourceFabrics::Opening::prove(Round round) {
  const Clock::Time now = of_.context_.clock.now();
  if (!proving_since_) {
    proving_since_ = now;
    proof_limit_ = std::min<Duration>({max_proof, patience_, (of_.options_.deadline - now) / 2});
  }
  proof_ = std::make_shared<bool>(true);
  ++requests_.unanswered;
  of_.events_.changed(Report::proving);
  proof_timer_.start(*proving_since_ + proof_limit_ - now, callbacks_.wrap([this] { proof_late(); }));
  read_word(bound_.word, callbacks_.wrap([this, round, proof = std::weak_ptr<bool>(proof_)](
                                             const transport::Outcome& fault, std::uint64_t /*word*/) {
    if (!proof.expired()) proof_read(round, fault);
  }));
}

void SourceFabrics::Opening::proof_late() {
  proof_.reset();
  --requests_.unanswered;
  const Error why(ErrorCode::transport_failed,
                  fmt::format("it has read nothing within {:.3g} s", seconds_of(proof_limit_)));
  if (proof_limit_ == max_proof && !bound_.channel->proven) of_.binding_.link->rule_out(fabric_, *bound_.channel, why);
  of_.exclude(fabric_, why);
}

void SourceFabrics::Opening::proof_read(Round round, const transport::Outcome& fault) {
  proof_.reset();
  --requests_.unanswered;
  proof_timer_.stop();
  if (!fault) {
    bound_.channel->proven = true;
    return connected();
  }
  // A read of another operation over the same connection may have caused the failure.
  if (round == Round::first) return prepare(Round::last);
  of_.exclude(fabric_, Error(fault->code, fault->message));
}

}  // namespace shardwire::restore
