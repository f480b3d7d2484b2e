// SPDX-License-Identifier: Apache-2.0
#include "restore/run.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "move/traits.hpp"
#include "restore/repeat.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

// One unbound binding per source, or the bindings of the earlier restore of the same plan.
std::vector<Binding> bindings_for(const Planning& planning, const Target& target, CachedRestore* earlier) {
  if (earlier == nullptr) return name_sources(planning, *target.wanted.manifest, target.places);
  std::vector<Binding> bindings = std::move(earlier->bindings);
  name_sources_again(planning, *target.wanted.manifest, target.places, bindings);
  return bindings;
}

Source::Options source_options(const Target& target) {
  const auto method = target.options.method;
  return {.from = target.options.from,
          .fabrics = {.deadline = target.deadline,
                      .wants_messages = method && move::carrier_of(*method) == move::Carrier::messages}};
}

void log_plan(Services& services, const Target& target, const std::vector<move::Transfer>& transfers,
              std::size_t sources) {
  ByteCount bytes = 0;
  for (const move::Transfer& transfer : transfers) bytes += move::bytes_of(transfer);
  services.log(LogLevel::info, fmt::format("restore of '{}' as layout rank {}: {} pieces, {} bytes from {} sources",
                                           target.options.from, to_int(target.catalog().layout_rank()),
                                           transfers.size(), bytes, sources));
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

void log_paths(Services& services, const std::vector<const Binding*>& bindings,
               const std::vector<move::Transfer>& transfers) {
  std::vector<std::map<Method, ByteCount>> methods(bindings.size());
  for (const move::Transfer& transfer : transfers) {
    methods[transfer.peer][transfer.method] += move::bytes_of(transfer);
  }
  for (std::size_t i = 0; i < bindings.size(); ++i) services.log(LogLevel::info, path_text(*bindings[i], methods[i]));
}

}  // namespace

Run::Run(Services& services, Listener& listener, Owner& owner, Target& target, DestinationEvents& events,
         RoundsShare* rounds, std::shared_ptr<Planning> planning, Earlier earlier)
    : services_(services),
      listener_(listener),
      owner_(owner),
      target_(target),
      events_(events),
      rounds_(rounds),
      callbacks_([this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      planning_(std::move(planning)),
      earlier_(std::move(earlier)),
      sources_(services, *this, paths(), source_options(target),
               bindings_for(*planning_, target, earlier_.restore.get())) {
  if (planning_->others.ranks().empty()) return;
  replicas_ = std::make_unique<ReplicaChecks>(services, owner, target, paths(), *planning_);
}

// --- bind ---

void Run::start() {
  Source::Leasing leasing = Source::Leasing::first;
  if (earlier_.restore && !target_.options.bind_only && rounds_ == nullptr) {
    leasing = leasing_of(*earlier_.restore, sources_.bindings(), target_.options, target_.catalog());
  }
  if (replicas_) replicas_->start();
  if (!stopped_) sources_.start(leasing);
}

void Run::on_all_bound() {
  callbacks_.run([this] {
    CachedRestore* const earlier = earlier_.restore.get();
    // All members vote each time bytes may come in rounds.
    if (rounds_ == nullptr && earlier != nullptr && !sources_.bound_anew() &&
        keeps_transfers(*earlier, target_.options, target_.catalog())) {
      chosen_ = {std::move(earlier->transfers), std::move(earlier->staged_local), std::move(earlier->predictions)};
      return begin();
    }
    BoundTransfers bound = make_transfers(*planning_, sources_.bindings(), target_.destination(), paths());
    if (rounds_ == nullptr) return choose(std::move(bound));
    rounds_->ask(std::move(bound), sources_.bindings(),
                 callbacks_.wrap([this](BoundTransfers asked) { choose(std::move(asked)); }));
  });
}

void Run::choose(BoundTransfers bound) {
  const auto bindings = sources_.bindings();
  chosen_.predictions = choose_methods(bound, bindings, *planning_, target_.destination(), services_.costs(),
                                       target_.options.method, rounds_ != nullptr ? &rounds_->group() : nullptr);
  chosen_.transfers = std::move(bound.transfers);
  chosen_.staged_local = std::move(bound.staged_local);
  log_paths(services_, bindings, *chosen_.transfers);
  begin();
}

void Run::begin() {
  log_plan(services_, target_, *chosen_.transfers, sources_.all().size());
  if (target_.options.bind_only) {
    owner_.on_stage(Stage::verify);
    return replicas_ ? replicas_->when_leased([this] { confirm(); }) : confirm();
  }
  events_.when_ready(callbacks_.wrap([this] {
    if (!stopped_) move();
  }));
}

// --- move, verify ---

void Run::move() {
  owner_.on_stage(Stage::move);
  Movement::Listener& listener = *this;
  movement_ = std::make_unique<Movement>(services_, listener, owner_, target_.options, *planning_, target_.wanted,
                                         sources_.all(), rounds_, take_staging());
  movement_->start(chosen_.transfers);
}

// Compares digests only now: a digest taken after the last read detects a source that changes its memory after a part
// was read.
void Run::on_moved() {
  owner_.on_stage(Stage::verify);
  movement_->compare_digests([this] { replicas_ ? replicas_->compare([this] { confirm(); }) : confirm(); });
}

void Run::confirm() {
  if (stopped_) return;
  sources_.confirm([this](const Source& source) {
    return source.reads_without_lease() && movement_ &&
           all_packed_by_source(*chosen_.transfers, source.index(), source.binding());
  });
}

// --- the end ---

void Run::stop() {
  stopped_ = true;
  sources_.stop();
  if (replicas_) replicas_->stop();
  if (movement_) movement_->stop();
}

void Run::release() {
  sources_.release();
  if (replicas_) replicas_->release();
  callbacks_.end();
}

std::shared_ptr<move::StagingPool> Run::take_staging() {
  if (movement_) return movement_->take_staging();
  if (earlier_.restore && earlier_.restore->staging) return std::move(earlier_.restore->staging);
  return std::move(earlier_.staging);
}

// Skipped and zeroed tensors depend on other members' publications: such a restore is not cached.
bool Run::keep_in(CachedRestore& cached) {
  const ResolvedValues& resolved = planning_->resolved;
  if (!chosen_.transfers || !resolved.skipped.empty() || !resolved.zeroed.empty()) return false;
  cached.staging = take_staging();
  cached.planning = std::move(planning_);
  cached.bindings = sources_.take_bindings();
  cached.transfers = std::move(chosen_.transfers);
  cached.staged_local = std::move(chosen_.staged_local);
  cached.predictions = std::move(chosen_.predictions);
  return true;
}

// --- queries ---

PathInputs Run::paths() {
  return {services_.fabrics(), target_.reach, rounds_ != nullptr ? &rounds_->group() : nullptr};
}

std::optional<wire::PublicationRecord> Run::record_of(Rank rank) const {
  const auto record = sources_.record_of(rank);
  return record || !replicas_ ? record : replicas_->record_of(rank);
}

double Run::digest_seconds() const {
  return (movement_ ? movement_->digest_seconds() : 0) + (replicas_ ? replicas_->digest_seconds() : 0);
}

Error Run::late() const {
  if (replicas_ && replicas_->comparing()) return late_source(replicas_->progress());
  if (movement_) return late_source(movement_->progress());
  if (chosen_.transfers && !events_.is_ready()) {
    return {
        ErrorCode::timed_out,
        "the deadline passed: events of the destination's own views had not happened, and nothing is written before",
        std::vector<Rank>{target_.catalog().layout_rank()}};
  }
  std::vector<SourceProgress> progress;
  for (const auto& source : sources_.all()) progress.push_back(progress_of(*source, services_));
  if (replicas_) std::ranges::copy(replicas_->progress(), std::back_inserter(progress));
  return late_source(progress);
}

}  // namespace shardwire::restore
