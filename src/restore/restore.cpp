// SPDX-License-Identifier: Apache-2.0
#include "restore/restore.hpp"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "restore/report.hpp"

namespace shardwire::restore {

namespace {

// An address may belong to another device by now.
std::unique_ptr<CachedRestore> take_earlier(Services& services, const Request& request) {
  auto earlier = services.cache().take(request.options.from, request.wanted, request.options.replicas);
  if (earlier && earlier->places != request.places) earlier.reset();
  return earlier;
}

Wanted wanted_by(Catalog catalog, const CachedRestore* earlier) {
  const auto shared = std::make_shared<const Catalog>(std::move(catalog));
  if (earlier != nullptr) return {shared, earlier->manifest, earlier->scope};
  return {shared, manifest_of(*shared), value_scope(*shared)};
}

}  // namespace

Restore::Restore(Services& services, Owner& owner, Request request, Clock::Time began)
    : services_(services),
      owner_(owner),
      callbacks_([this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      earlier_(take_earlier(services, request)),
      target_(wanted_by(std::move(request.wanted), earlier_.get()), std::move(request.places), request.options,
              began + request.options.deadline),
      discovery_(services, *this, owner, target_.options, target_.wanted,
                 earlier_ ? std::move(earlier_->planning) : nullptr),
      events_(services.copies(), [this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      commit_(services, target_.destination(), [this](const std::exception_ptr& error) {
        if (stopped_) return owner_.on_quieter();
        if (error) return owner_.on_failed(error);
        events_.record(target_.options, [this] { owner_.on_done(); });
      }) {
  if (!request.rounds) return;
  rounds_ = std::make_unique<RoundsShare>(std::move(request.rounds),
                                          [this](const std::exception_ptr& error) { owner_.on_failed(error); });
}

void Restore::start() {
  callbacks_.run([this] {
    if (const std::size_t managed = count_managed(target_.places); managed > 0) {
      services_.log(LogLevel::info, fmt::format("restore of '{}': {} tensors lie in managed memory, which is moved as "
                                                "memory of its device",
                                                target_.options.from, managed));
    }
    events_.await(target_.catalog(), target_.places);
    if (target_.wanted.manifest->tensors.empty() && target_.catalog().values().empty()) return on_verified();
    discovery_.start();
  });
}

void Restore::on_planned(std::shared_ptr<Planning> planning) {
  owner_.on_stage(Stage::bind);
  values_ = std::move(planning->resolved.values);
  Run::Earlier earlier{.staging = std::move(staging_)};
  if (discovery_.used_earlier()) earlier.restore = std::move(earlier_);
  earlier_.reset();
  Run::Listener& listener = *this;
  run_ = std::make_unique<Run>(services_, listener, owner_, target_, events_, rounds_.get(), std::move(planning),
                               std::move(earlier));
  run_->start();
}

void Restore::on_verified() {
  callbacks_.run([this] {
    if (target_.options.bind_only) return events_.record(target_.options, [this] { owner_.on_done(); });
    owner_.on_stage(Stage::commit);
    commit_.start(values_, run_ ? run_->planning().resolved.zeroed : std::vector<TensorId>());
  });
}

// --- the end, or another plan ---

void Restore::stop() {
  stopped_ = true;
  discovery_.stop();
  if (run_) run_->stop();
  if (rounds_) rounds_->stop();
}

bool Restore::quiet(bool fabrics_dead) const {
  return commit_.quiet() && (!run_ || run_->quiet(fabrics_dead));
}

void Restore::restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn) {
  if (run_) {
    run_->release();
    for (std::size_t i = 0; i < method_count && run_->movement() != nullptr; ++i) {
      abandoned_bytes_[i] += run_->movement()->tally().method_bytes(static_cast<Method>(i));
    }
    staging_ = run_->take_staging();
    run_.reset();
  }
  values_.clear();
  events_.forget();
  earlier_.reset();
  stopped_ = false;
  owner_.on_stage(Stage::plan);
  discovery_.restart(gone, withdrawn);
}

void Restore::release() {
  if (run_) run_->release();
  discovery_.stop();
  callbacks_.end();
  events_.take_back();
  if (rounds_) rounds_->stop();
}

void Restore::keep() {
  CachedRestore cached{.from = target_.options.from,
                       .wanted = target_.catalog(),
                       .places = target_.places,
                       .manifest = target_.wanted.manifest,
                       .scope = discovery_.value_scope(),
                       .replicas = target_.options.replicas,
                       .method = target_.options.method};
  if (!run_ || !run_->keep_in(cached)) return;
  cached.placed = std::move(target_.placed);
  services_.cache().keep(std::make_unique<CachedRestore>(std::move(cached)));
}

// --- queries ---

Error Restore::late(Stage stage) const {
  if (stage == Stage::commit) return {ErrorCode::timed_out, "the deadline passed while zeros were written"};
  const bool reading = stage == Stage::bind || stage == Stage::move || stage == Stage::verify;
  return reading && run_ ? run_->late() : discovery_.late();
}

RestoreReport Restore::report(const StageSeconds& seconds, bool failed) const {
  const ChosenTransfers chosen = run_ ? run_->chosen() : ChosenTransfers();
  ReportInput input{.options = target_.options,
                    .fabrics = services_.fabrics(),
                    .session = services_.facts(),
                    .seconds = seconds,
                    .failed = failed,
                    .planning = run_ ? &run_->planning() : nullptr,
                    .manifest = target_.wanted.manifest.get(),
                    .bindings = run_ ? run_->sources().bindings() : std::vector<const Binding*>(),
                    .transfers = chosen.transfers.get(),
                    .predictions = chosen.predictions,
                    .staged_local = chosen.staged_local,
                    .abandoned_bytes = abandoned_bytes_,
                    .rounds = rounds_ ? &rounds_->group() : nullptr};
  if (const Movement* const moved = movement()) {
    input.moved.emplace(Moved{moved->tally(), moved->staging_peak_bytes(), run_->digest_seconds()});
  }
  return make_report(input);
}

}  // namespace shardwire::restore
