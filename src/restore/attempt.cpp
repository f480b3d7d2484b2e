// SPDX-License-Identifier: Apache-2.0
#include "restore/attempt.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "memory/digest.hpp"
#include "memory/strided_copy.hpp"
#include "move/traits.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

// One unbound binding per source, or the bindings of the earlier restore of the same plan.
std::vector<Binding> bindings_for(const Planning& planning, const Target& target, ParkedAttempt* earlier,
                                  const PathFailures& failures) {
  if (earlier == nullptr) {
    std::vector<Binding> bindings = name_sources(planning, *target.wanted.manifest, target.places);
    for (Binding& one : bindings) one.failed_fabrics = failures.failed_fabrics(one.holder);
    return bindings;
  }
  std::vector<Binding> bindings = std::move(earlier->bindings);
  name_sources_again(planning, *target.wanted.manifest, target.places, bindings);
  return bindings;
}

Source::Options source_options(const Target& target) {
  const auto method = target.method;
  return {.from = target.options.name,
          .fabrics = {.deadline = target.deadline,
                      .patience = 2 * target.options.notice,  // a connection that stands still
                      .wants_messages = method && move::carrier_of(*method) == move::Carrier::messages}};
}

void log_plan(const Context& context, const Target& target, const std::vector<move::Transfer>& transfers,
              std::size_t sources) {
  ByteCount bytes = 0;
  for (const move::Transfer& transfer : transfers) bytes += move::bytes_of(transfer);
  context.log(LogLevel::info,
              fmt::format("restore of '{}' as layout rank {}: {} pieces, {} bytes from {} sources", target.options.name,
                          to_int(target.catalog().layout_rank()), transfers.size(), bytes, sources));
}

// The path to a source: its fabrics and methods, and why nothing is mapped if nothing is.
std::string path_text(const Binding& binding, const std::map<Method, ByteCount>& methods) {
  std::string moved;
  for (const auto& [method, bytes] : methods) {
    moved += fmt::format("{}{} bytes {}", moved.empty() ? "" : ", ", bytes, to_string(method));
  }
  std::string carriers = binding.is_own() ? "this process" : "";
  for (const ConnectedFabric& one : binding.connected) {
    carriers += fmt::format("{}{}", carriers.empty() ? "" : ", ", one.path.carrier);
  }
  const std::string rejected = to_text(binding.path.rejected);
  return fmt::format("path to source rank {}, member {}: {}: {}{}{}", to_int(binding.layout_rank),
                     binding.record.member, carriers, moved, rejected.empty() ? "" : "; ", rejected);
}

void log_paths(const Context& context, const std::vector<const Binding*>& bindings,
               const std::vector<move::Transfer>& transfers) {
  std::vector<std::map<Method, ByteCount>> methods(bindings.size());
  for (const move::Transfer& transfer : transfers) {
    methods[transfer.peer][transfer.method] += move::bytes_of(transfer);
  }
  for (std::size_t i = 0; i < bindings.size(); ++i) context.log(LogLevel::info, path_text(*bindings[i], methods[i]));
}

// Flips one bit of a part in host memory. Returns the digest of the part afterwards.
Digest128 flip_bit(const move::TransferPart& part) {
  const move::Transfer& transfer = *part.transfer;
  const memory::StridedCopy place(part.box, transfer.wanted, memory::packed(part.box), transfer.item_bytes);
  transfer.target[place.source_span().first] ^= std::byte{1};
  return memory::digest_box(part.box, transfer.wanted, transfer.target, transfer.item_bytes);
}

// Bytes that hardware or the kernel reads are compared with a digest of their source, which checks its blocks first. Messages
// are of checked blocks anyway, and loaded memory is checked here.
bool wants_digests(const RestoreOptions& options, const Sources& sources, std::span<const move::Transfer> transfers) {
  if (options.verify == Verify::digest) return true;
  return std::ranges::any_of(transfers, [&](const move::Transfer& one) {
    return move::carrier_of(one.method) == move::Carrier::reads && sources[one.peer]->binding().digests;
  });
}

}  // namespace

Attempt::Attempt(const Context& context, Reports reports, Target& target, DestinationEvents& events,
                 PathFailures& failures, RoundsStep* rounds, std::shared_ptr<Planning> planning, Earlier earlier)
    : context_(context),
      reports_(std::move(reports)),
      target_(target),
      events_(events),
      failures_(failures),
      rounds_(rounds),
      callbacks_(reports_.failed),
      planning_(std::move(planning)),
      earlier_(std::move(earlier)),
      sources_(make_sources(context, *this, paths(), source_options(target),
                            bindings_for(*planning_, target, earlier_.parked.get(), failures))),
      checks_(context.copies, sources_,
              {.block_differs = [this](const Source& source,
                                       const wire::RequestedBox& block) { ledger_.note_rotten(source, block); },
               .parts_differ = [this](std::span<const move::TransferPart> parts,
                                      std::span<const wire::RequestedBox> blocks) { on_parts_differ(parts, blocks); },
               .failed = reports_.failed,
               .quieter = reports_.quieter},
              target.digests),
      ledger_(context, target, *planning_, sources_),
      retry_(context.clock),
      look_(context.clock, target.options.notice,
            [this](Clock::Time now, bool overslept) { callbacks_.run([&] { look(now, overslept); }); }),
      silence_(sources_, target.options.notice, look_.interval()),
      slow_sources_(target.options.notice),
      lost_(std::move(earlier_.lost)),
      slow_(failures.standing()) {
  if (planning_->others.ranks().empty()) return;
  replicas_ = std::make_unique<ReplicaChecks>(
      context, ReplicaChecks::Reports{reports_.failed, reports_.source_ended, reports_.quieter}, target, paths(),
      *planning_);
}

// --- bind ---

void Attempt::start() {
  Source::Leasing leasing = Source::Leasing::first;
  if (earlier_.parked && !target_.options.bind_only && rounds_ == nullptr) {
    leasing =
        leasing_of(*earlier_.parked, bindings_of(sources_), target_.options.verify, target_.method, target_.catalog());
  }
  if (replicas_) replicas_->start();
  if (target_.outlives_sources && !stopped_) {
    silence_.begin(context_.clock.now());
    look_.start();
  }
  for (const auto& source : sources_) {
    if (!stopped_) source->start(leasing);
  }
  await(Awaited::bound);
}

// A source may report within the call that starts or confirms it: the next step follows the last of these calls.
void Attempt::await(Awaited what) {
  awaited_ = what;
  go_on();
}

// A lost source without which the attempt cannot continue has stopped it.
void Attempt::go_on() {
  const auto state = awaited_ == Awaited::bound ? Source::State::bound : Source::State::released;
  if (stopped_ || awaited_ == Awaited::nothing || !have_reached(sources_, state)) return;
  if (std::exchange(awaited_, Awaited::nothing) == Awaited::bound) return on_all_bound();
  reports_.verified();
}

void Attempt::on_all_bound() {
  callbacks_.run([this] {
    ParkedAttempt* const earlier = earlier_.parked.get();
    // All members vote each time bytes may come in rounds.
    if (rounds_ == nullptr && earlier != nullptr && std::ranges::none_of(sources_, &Source::bound_anew) &&
        keeps_transfers(*earlier, target_.method, target_.catalog())) {
      chosen_ = std::move(earlier->chosen);
      return begin();
    }
    BoundTransfers bound = make_transfers(*planning_, bindings_of(sources_), target_.destination(), paths());
    rounds_ == nullptr ? choose(std::move(bound)) : ask_rounds(std::move(bound));
  });
}

// All members decide together, unless that is known.
void Attempt::ask_rounds(BoundTransfers bound) {
  const std::vector<const Binding*> bindings = bindings_of(sources_);
  std::vector<int> members;
  for (const Binding* binding : bindings) members.push_back(binding->record.member);
  rounds_->set_members(std::move(members));
  const bool indirect = offer_rounds(bound, bindings, rounds_->group());
  auto decided = [this, bound = std::move(bound)](bool in_rounds) mutable {
    decide_rounds(bound, in_rounds);
    choose(std::move(bound));
  };
  if (!rounds_->group().undecided) return decided(true);
  rounds_->report_paths(indirect, callbacks_.wrap(std::move(decided)));
}

void Attempt::choose(BoundTransfers bound) {
  const std::vector<const Binding*> bindings = bindings_of(sources_);
  chosen_.predictions = choose_methods(bound, bindings, *planning_, target_.destination(), context_.costs,
                                       target_.method, rounds_ != nullptr ? &rounds_->group() : nullptr);
  chosen_.transfers = std::move(bound.transfers);
  chosen_.staged_local = std::move(bound.staged_local);
  log_paths(context_, bindings, *chosen_.transfers);
  begin();
}

void Attempt::begin() {
  log_plan(context_, target_, *chosen_.transfers, sources_.size());
  if (target_.options.bind_only) {
    reports_.stage(Stage::verify);
    return replicas_ ? replicas_->when_leased([this] { confirm(); }) : confirm();
  }
  events_.when_ready(callbacks_.wrap([this] {
    if (!stopped_) move();
  }));
}

// --- move ---

void Attempt::move() {
  reports_.stage(Stage::move);
  make_engine();
  ledger_.begin(*engine_, transfers(), [this](std::size_t source) { return checks_.can_check(source); });
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    const auto& read_by = binding.path.read_by;
    const transport::Path path = read_by ? binding.connected[*read_by].path : transport::Path{};
    engine_->limit(static_cast<std::uint32_t>(i), {.max_pack_bytes = binding.max_pack_bytes,
                                                   .first_request = context_.first_request(),
                                                   .max_ranges = path.max_read_ranges,
                                                   .max_read_bytes = path.max_read_bytes,
                                                   .max_reads = path.max_reads,
                                                   .max_message_ranges = binding.max_message_ranges()});
    sources_[i]->begin_moving();
  }
  engine_->add(chosen_.transfers);
  checks_.start(transfers());
  for (const auto& source : sources_) {
    if (source->state() == Source::State::lost) drop(*source);
  }
  (void)can_continue();
  advance();
  if (!target_.outlives_sources || stopped_) return;
  standstill_.begin(sources_.size(), context_.clock.now());
  slow_sources_.begin(samples(), context_.clock.now());
  look_.start();
}

void Attempt::make_engine() {
  const RestoreOptions& options = target_.options;
  arrivals_.assign(sources_.size(), {0, context_.clock.now()});
  digests_ = wants_digests(options, sources_, transfers());
  staging_ = take_staging();
  if (!staging_ || staging_->budget_bytes() != options.staging_bytes) {
    staging_ = std::make_shared<move::StagingPool>(options.staging_bytes, move::slot_bytes_for(context_.costs));
  }
  staging_->forget_peak();
  move::Requests& requests = *this;
  move::Events& events = *this;
  const move::EngineOptions engine_options{.ingress_bytes_per_second = options.ingress_bytes_per_second,
                                           .digests = digests_,
                                           .costs = context_.costs,
                                           .payloads = context_.payloads,
                                           .rounds = rounds_,
                                           .now = [&clock = context_.clock] { return clock.now(); }};
  engine_ = std::make_unique<move::Engine>(context_.copies, staging_, engine_options, requests, events);
}

void Attempt::advance() {
  if (stopped_) return reports_.quieter();
  if (moved_) return;
  callbacks_.run([this] {
    const auto retry = engine_->pump(context_.clock.now());
    if (context_.probe != nullptr) tell_probe();
    if (stopped_) return;
    ledger_.prove_reads();
    if (ledger_.take_back()) (void)can_continue();
    if (stopped_) return;
    if (engine_->settled() && doubtful_.empty()) {
      moved_ = true;
      retry_.stop();
      if (context_.probe != nullptr && target_.options.verify != Verify::digest) spoil();
      return on_moved();
    }
    if (retry) retry_.start(*retry - context_.clock.now(), [this] { advance(); });
  });
}

// --- requests and events of the engine ---

transport::Endpoint& Attempt::endpoint(std::uint32_t peer) {
  const Binding& binding = sources_[peer]->binding();
  return *binding.connected[binding.path.read_by.value()].channel->endpoint;
}

void Attempt::ask(std::uint32_t peer, std::uint64_t request, std::vector<move::PackPart> parts,
                  move::MessageForm form) {
  wire::PackRequest message{.request = request,
                            .lease = 0,
                            .parts = {},
                            .each = form == move::MessageForm::each,
                            .digest = digests_,
                            .gathered = form == move::MessageForm::gathered};
  message.parts.reserve(parts.size());
  for (move::PackPart& part : parts) message.parts.push_back({part.held_tensor, part.box});
  Source& source = *sources_[peer];
  source.requests().ask_for_payload(
      std::move(message), callbacks_.wrap([this, &source](const std::string& why) { messages_ended(source, why); }),
      callbacks_.wrap([this, &source, request](const std::vector<wire::RequestedBox>& blocks) {
        refused_as_corrupt(source, request, blocks);
      }));
}

void Attempt::forget(std::uint32_t peer, std::uint64_t request) {
  sources_[peer]->binding().link->forget(request);
}

void Attempt::failed(const std::exception_ptr& error) {
  reports_.failed(error);
  advance();
}

void Attempt::peer_failed(std::uint32_t peer, const transport::Fault& fault) {
  Source& source = *sources_[peer];
  if (source.state() == Source::State::lost) return advance();  // all that was under way fails
  if (fault.code == ErrorCode::cancelled) {
    path_failed(source, PathLoss::aborted, fault.message);
  } else if (fault.code == ErrorCode::withdrawn) {
    path_failed(source, PathLoss::refused, fault.message);
  } else if (fault.code == ErrorCode::peer_lost && target_.alone) {
    // A source that is lost loses its link too. One that answers has lost the path only.
    if (engine_->dropped(peer)) return advance();
    doubtful_.emplace(peer, fault.message);
    ledger_.drop(source);
    ask_doubtful();
  } else {
    reports_.failed(std::make_exception_ptr(
        Error(fault.code, fmt::format("source rank {}: {}", to_int(source.rank()), fault.message),
              std::vector<Rank>{source.rank()})));
  }
  advance();
}

void Attempt::digested(const move::TransferPart& part, const Digest128& digest) {
  const move::Carrier carrier = move::carrier_of(part.transfer->method);
  const bool published = sources_[part.transfer->peer]->binding().digests;
  if (published && carrier == move::Carrier::mapping) return;  // see ContentChecks
  if (target_.options.verify != Verify::digest && carrier != move::Carrier::reads) return;
  callbacks_.run([&] { checks_.add(part, is_spoilt(*part.transfer) ? flip_bit(part) : digest); });
}

void Attempt::differs(const move::TransferPart& part) {
  const Source& source = *sources_[part.transfer->peer];
  if (source.binding().digests && target_.outlives_sources) {
    const auto parts = engine_->take_differing(part.transfer->peer);
    ledger_.note_returned(parts);
    ledger_.note_corrupt(parts);
    return advance();
  }
  failed(std::make_exception_ptr(differing_parts(std::span(&part, 1), *planning_, *target_.wanted.manifest,
                                                 target_.catalog().layout_rank(), source.rank())));
}

void Attempt::refused_as_corrupt(const Source& source, std::uint64_t request,
                                 std::span<const wire::RequestedBox> blocks) {
  const auto parts = engine_->refuse(static_cast<std::uint32_t>(source.index()), request);
  ledger_.note_returned(parts);
  if (!parts.empty()) ledger_.note_corrupt(source, blocks);
  advance();
}

// --- drills ---

void Attempt::tell_probe() {
  const ByteCount remote = tally()->done_bytes() - tally()->method_bytes(Method::local);
  if (remote > probed_bytes_) context_.probe->arrived(remote - probed_bytes_);
  probed_bytes_ = remote;
}

bool Attempt::is_spoilt(const move::Transfer& transfer) {
  Probe* const probe = context_.probe;
  return probe != nullptr && transfer.method != Method::local && transfer.target_device == memory::on_host &&
         probe->spoils(sources_[transfer.peer]->rank());
}

// Without digests, only the caller can check what has arrived.
void Attempt::spoil() {
  for (const move::Transfer& transfer : transfers()) {
    if (!engine_->dropped(transfer.peer) && is_spoilt(transfer)) flip_bit({transfer, transfer.box});
  }
}

// --- verify ---

// Compares digests only now: a digest taken after the last read detects a source that changes its memory after a part
// was read.
void Attempt::on_moved() {
  reports_.stage(Stage::verify);
  checks_.compare([this] { replicas_ ? replicas_->compare([this] { confirm(); }) : confirm(); });
}

void Attempt::on_parts_differ(std::span<const move::TransferPart> parts, std::span<const wire::RequestedBox> blocks) {
  const Source& source = *sources_[parts.front().transfer->peer];
  if (!source.binding().digests) {
    throw differing_parts(parts, *planning_, *target_.wanted.manifest, target_.catalog().layout_rank(), source.rank());
  }
  ledger_.note_rotten(parts);
  blocks.empty() ? ledger_.note_corrupt(parts) : ledger_.note_corrupt(source, blocks);
}

// A source looks at the lease, or at the generation that is read without one, before it sends a message
// (ServedRequest::check_readable()), and keeps the memory in use until the message is sent or the endpoint is gone. A message
// whose bytes were copied in that time (transport::Incoming::is_copied()) thus has bytes of the generation that was bound:
//
//   zcopy over tcp                   proven: copied from the publication while it is in use
//   packed over tcp                  proven: packed while the publication is in use, copied before the slot is used again
//   zcopy, packed over ucx           not proven: the bytes may be fetched once the source has given this reader up, when its
//                                    memory is the caller's again, or the slot is packed for another reader
//   mapped, read, sieved_read        not proven: the source does not know when they are read
//   collective                       not proven: rounds look at no lease
void Attempt::confirm() {
  const auto is_proven = [this](const Source& source) {
    return engine_ && engine_->messages_are_copied() && all_in_messages(*chosen_.transfers, source.index());
  };
  for (const auto& source : sources_) {
    if (!stopped_) source->confirm(is_proven(*source));
  }
  await(Awaited::confirmed);
}

// --- the end ---

void Attempt::stop() {
  stopped_ = true;
  look_.stop();
  retry_.stop();
  if (replicas_) replicas_->stop();
  checks_.stop();
  if (engine_) engine_->stop();
}

bool Attempt::quiet(bool fabrics_dead) const {
  if (!checks_.idle() || (replicas_ && !replicas_->quiet())) return false;
  return !engine_ || (fabrics_dead ? engine_->copies_idle() : engine_->idle());
}

// An aborted link is not reused: a later restore creates a new one. Links stay for new plans, of this and of other
// restores, which use other channels: a source may send over any of them.
void Attempt::abort_connections(bool keeps_links) {
  for (std::size_t i = 0; engine_ && i < sources_.size(); ++i) {
    const Binding& binding = sources_[i]->binding();
    if (!binding.link || !engine_->writes_from(static_cast<std::uint32_t>(i))) continue;
    for (const ConnectedFabric& one : binding.connected) one.channel->abort();
    binding.link->abort_channels();
    if (keeps_links || binding.link->watchers() > 1) continue;
    binding.link->abort(
        Error(ErrorCode::cancelled, "another restore that used the connection was stopped, and closed it"));
  }
}

void Attempt::release() {
  for (const auto& source : sources_) source->release();
  if (replicas_) replicas_->release();
  callbacks_.end();
}

std::shared_ptr<move::StagingPool> Attempt::take_staging() {
  if (staging_) return std::move(staging_);
  if (earlier_.parked && earlier_.parked->staging) return std::move(earlier_.parked->staging);
  return std::move(earlier_.staging);
}

// Skipped and zeroed tensors depend on other members' publications: such a restore is not cached.
std::unique_ptr<ParkedAttempt> Attempt::park() {
  const ResolvedValues& resolved = planning_->resolved;
  if (!chosen_.transfers || !resolved.skipped.empty() || !resolved.zeroed.empty()) return nullptr;
  auto parked = std::make_unique<ParkedAttempt>(
      ParkedAttempt{.from = target_.options.name,
                    .wanted = {target_.wanted.catalog, target_.wanted.manifest, planning_->scope},
                    .places = target_.places,
                    .replicas = target_.options.replicas,
                    .method = target_.method,
                    .staging = take_staging()});
  for (const auto& source : sources_) parked->bindings.push_back(source->take_binding());
  parked->planning = std::move(planning_);
  parked->chosen = std::move(chosen_);
  return parked;
}

// --- queries ---

PathInputs Attempt::paths() {
  return {context_.fabrics, target_.reach, rounds_ != nullptr ? &rounds_->group() : nullptr};
}

std::span<const move::Transfer> Attempt::transfers() const {
  return chosen_.transfers ? std::span<const move::Transfer>(*chosen_.transfers) : std::span<const move::Transfer>();
}

double Attempt::digest_seconds() const {
  return checks_.digest_seconds() + (engine_ ? engine_->digest_seconds() : 0) +
         (replicas_ ? replicas_->digest_seconds() : 0);
}

Error Attempt::late() const {
  if (!awaits_events()) return late_source(progress());
  return {ErrorCode::timed_out,
          "the deadline passed: events of the destination's own views had not happened, and nothing is written before",
          std::vector<Rank>{target_.catalog().layout_rank()}};
}

std::string Attempt::awaited() const {
  return awaits_events() ? "events of the destination's own views" : awaited_text(progress());
}

std::uint64_t Attempt::answers() const {
  std::uint64_t all = 0;
  for (const auto& source : sources_) all += source->requests().answered();
  if (!replicas_) return all;
  for (const auto& holder : replicas_->sources()) all += holder->requests().answered();
  return all;
}

bool Attempt::awaits_events() const {
  const bool reads = engine_ || (replicas_ && replicas_->comparing());
  return !reads && chosen_.transfers && !events_.is_ready();
}

std::vector<SourceProgress> Attempt::progress() const {
  if (replicas_ && replicas_->comparing()) return replicas_->progress();
  std::vector<SourceProgress> progress = progress_of(sources_, context_);
  if (!engine_) {
    if (replicas_) std::ranges::copy(replicas_->progress(), std::back_inserter(progress));
    return progress;
  }
  const auto now = context_.clock.now();
  for (const move::Transfer& transfer : transfers()) {
    progress[transfer.peer].outstanding_bytes += move::bytes_of(transfer);
  }
  for (std::size_t i = 0; i < progress.size(); ++i) {
    progress[i].keeps_up = now - arrivals_[i].last < keeping_up;
    ByteCount& left = progress[i].outstanding_bytes;
    left -= std::min(left, tally()->peer_bytes(static_cast<std::uint32_t>(i)));
  }
  return progress;
}

}  // namespace shardwire::restore
