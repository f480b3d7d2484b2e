// SPDX-License-Identifier: Apache-2.0
#include "restore/restore.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "restore/verdict.hpp"
#include "support/ranks_of.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/trace.hpp"

namespace shardwire::restore {

namespace {

// For the log: why a restore has failed.
std::string why_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& reason) {
    return fmt::format("{}: {}", to_string(reason.code()), reason.what());
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an exception of the caller";
  }
}

// An address may belong to another device by now.
std::unique_ptr<CachedRestore> take_earlier(const Context& context, const Request& request) {
  if (request.unfinished) return nullptr;
  auto earlier = context.cache.take(request.options.name, request.wanted, request.options.replicas);
  if (earlier && earlier->places != request.places) earlier.reset();
  return earlier;
}

Wanted wanted_by(Catalog catalog, const CachedRestore* earlier) {
  const auto shared = std::make_shared<const Catalog>(std::move(catalog));
  if (earlier != nullptr) return {shared, earlier->manifest, earlier->scope};
  return {shared, manifest_of(*shared), value_scope(*shared)};
}

// The publications that hold something of the plan, whether or not it is read from them.
std::vector<wire::PublicationRecord> holders_in(const Planning& planning) {
  std::set<Rank> ranks;
  for (const std::vector<Rank>& holders : planning.plan.holder_sets) ranks.insert(holders.begin(), holders.end());
  std::vector<wire::PublicationRecord> records;
  std::ranges::copy_if(planning.records, std::back_inserter(records),
                       [&](const auto& record) { return ranks.contains(Rank{record.layout_rank}); });
  return records;
}

}  // namespace

Restore::Restore(const Context& context, Owner& owner, Request request, Clock::Time began)
    : context_(context),
      owner_(owner),
      callbacks_([this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      earlier_(take_earlier(context, request)),
      target_(wanted_by(std::move(request.wanted), earlier_.get()), std::move(request.places), request.options,
              request.method, began, request.exchange && request.exchange->rounds),
      discovery_(
          context,
          {.planned = [this](std::shared_ptr<Planning> planning) { on_planned(std::move(planning)); },
           .stale = [this](const auto& records) { std::ranges::copy(records, std::back_inserter(target_.gone)); }},
          owner, target_, earlier_ ? std::move(earlier_->planning) : nullptr),
      events_(context.copies, [this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      commit_(context, target_.destination(),
              [this](const std::exception_ptr& error) {
                if (stopped_) return owner_.on_quieter();
                if (error) return owner_.on_failed(error);
                events_.record(target_.options, [this] { owner_.on_done(); });
              }),
      reconnect_(context.clock) {
  target_.only = std::move(request.only);
  target_.digests = std::move(request.digests);
  if (request.unfinished) {
    before_ = std::exchange(request.unfinished->report, {});
    values_ = std::move(request.unfinished->values);
    if (request.unfinished->planning) {
      search(std::move(request.unfinished), nullptr);
    }
  }
  if (!request.exchange) return;
  discovery_.plan_together();
  target_.exchange_losses = request.exchange->losses;
  if (!request.exchange->rounds) return;
  rounds_ = std::make_unique<RoundsShare>(std::move(request.exchange->rounds),
                                          [this](const std::exception_ptr& error) { owner_.on_failed(error); });
}

void Restore::start() {
  callbacks_.run([this] {
    if (const std::size_t managed = count_managed(target_.places); managed > 0) {
      context_.log(LogLevel::info, fmt::format("restore of '{}': {} tensors lie in managed memory, which is moved as "
                                               "memory of its device",
                                               target_.options.name, managed));
    }
    events_.await(target_.catalog(), target_.places);
    if (search_) return search_->start();
    if (target_.wanted.manifest->tensors.empty() && target_.catalog().values().empty()) return on_verified();
    discovery_.start();
  });
}

void Restore::on_planned(std::shared_ptr<Planning> planning) {
  if (const auto lost = lost_before_plan(planning->resolved)) {
    return owner_.on_failed(std::make_exception_ptr(*lost));
  }
  values_ = std::move(planning->resolved.values);
  zeroed_ = planning->resolved.zeroed;
  planned_ = std::move(planning);
  if (owner_.on_values(values_)) proceed();
}

void Restore::proceed() {
  if (!planned_ || stopped_) return;
  auto planning = std::exchange(planned_, nullptr);
  context_.look_ahead(holders_in(*planning));
  owner_.on_stage(Stage::bind);
  Run::Earlier earlier{.staging = std::move(staging_)};
  if (discovery_.used_earlier()) earlier.restore = std::move(earlier_);
  earlier_.reset();
  pass_over_silent(*planning);
  start_run(std::move(planning), std::move(earlier));
}

// A holder that has not answered this reader is its last choice. Other readers may have heard it, so they no longer agree on
// who reads from whom.
void Restore::pass_over_silent(Planning& planning) {
  if (!target_.outlives_sources || rounds_ || discovery_.used_earlier() || discovery_.silent().empty()) return;
  Unavailable unavailable;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    const wire::PublicationRecord& record = planning.records[i];
    if (discovery_.silent().contains({record.member, record.epoch})) unavailable.silent.push_back(planning.holders[i]);
  }
  if (unavailable.silent.empty()) return;
  std::vector<PieceBox> all;
  for (const ScheduledPiece& item : planning.schedule.items) all.push_back({item.piece, planning.schedule.box(item)});
  plan_again(planning, all, unavailable);
  passed_over_ = std::move(unavailable.silent);
}

// All members of an exchange have to pick the same values, and to miss the same tensors: what a member published cannot
// be told once it is lost.
std::optional<Error> Restore::lost_before_plan(const ResolvedValues& resolved) const {
  if (!target_.exchange_losses) return std::nullopt;
  const std::vector<int> lost = context_.directory.lost_since(*target_.exchange_losses);
  if (lost.empty() || (resolved.values.empty() && resolved.skipped.empty() && resolved.zeroed.empty())) {
    return std::nullopt;
  }
  return Error(ErrorCode::peer_lost,
               fmt::format("member {} {} lost before its values were read", fmt::join(lost, ", "),
                           lost.size() == 1 ? "was" : "were"),
               support::ranks_of(lost));
}

void Restore::start_run(std::shared_ptr<Planning> planning, Run::Earlier earlier) {
  run_ = std::make_unique<Run>(
      context_, [this] { on_verified(); }, owner_, target_, events_, failures_, rounds_.get(), std::move(planning),
      std::move(earlier));
  run_->start();
}

void Restore::on_verified() {
  if (run_ && !run_->undelivered().empty()) return replace_lost_soon();
  callbacks_.run([this] {
    if (target_.options.bind_only) return events_.record(target_.options, [this] { owner_.on_done(); });
    owner_.on_stage(Stage::commit);
    commit_.start(values_, zeroed_);
  });
}

// --- lost sources ---

// Deferred: the run is still on the call stack.
void Restore::replace_lost_soon() {
  const Duration wait = failures_.take_wait();
  if (wait == Duration::zero()) return context_.defer(callbacks_.wrap([this] { replace_lost(); }));
  reconnect_.start(wait, callbacks_.wrap([this] { replace_lost(); }));
}

// Another run moves what lost sources have not delivered. All other bytes are in place and confirmed.
void Restore::replace_lost() {
  if (stopped_ || !run_) return;  // another plan was faster
  const std::vector<PieceBox> left = run_->undelivered();
  if (left.empty()) return;
  run_->find_copies();
  corruption_.add(run_->corrupt());
  const Plan& plan = run_->planning().plan;
  const auto gaps = without_holder(plan, left, run_->lost());
  if (!gaps.empty() && !run_->may_be_held_later()) return owner_.on_failed(with_gaps(run_->loss(), gaps));
  if (auto unsound = without_holder(plan, left, run_->lost(), corruption_.holders()); unsound.size() > gaps.size()) {
    return owner_.on_failed(
        std::make_exception_ptr(corrupt_everywhere(unsound, run_->planning(), corruption_.holders())));
  }
  if (run_->movement() != nullptr && !run_->movement()->accounts_for_all()) {
    return owner_.on_failed(
        std::make_exception_ptr(Error(ErrorCode::internal, "bytes of lost sources are not accounted for")));
  }
  before_ = report_without(left);
  trace_moved();
  abandoned_bytes_ = {};
  run_->release();
  staging_ = run_->take_staging();
  Unavailable unavailable = run_->unavailable(corruption_.holders());
  unavailable.silent = pass_over(plan, left, unavailable);
  const auto planning = run_->share_planning();
  const std::exception_ptr loss = run_->loss();
  run_.reset();
  if (gaps.empty()) return replan_and_run(planning, left, unavailable);
  auto unfinished = std::make_unique<Unfinished>();
  unfinished->planning = planning;
  unfinished->missing = left;
  unfinished->unavailable = std::move(unavailable);
  owner_.on_stage(Stage::plan);
  search(std::move(unfinished), loss);
  search_->start();
}

void Restore::search(std::unique_ptr<Unfinished> unfinished, std::exception_ptr loss) {
  search_ = std::make_unique<HolderSearch>(
      context_, target_, std::move(unfinished), std::move(loss),
      HolderSearch::Events{.found = [this] { context_.defer(callbacks_.wrap([this] { resume(); })); },
                           .failed = [this](const std::exception_ptr& error) { owner_.on_failed(error); }});
}

// The next plan also passes over holders that were silent in earlier runs. Once all holders of some box were, it asks them again.
std::vector<Rank> Restore::pass_over(const Plan& plan, std::span<const PieceBox> missing, const Unavailable& of_run) {
  for (const Rank holder : of_run.silent) {
    if (!is_in(passed_over_, holder)) passed_over_.push_back(holder);
  }
  std::vector<Rank> without = of_run.lost;
  without.insert(without.end(), passed_over_.begin(), passed_over_.end());
  if (!without_holder(plan, missing, without).empty()) passed_over_ = of_run.silent;
  return passed_over_;
}

void Restore::plan_again(Planning& planning, std::span<const PieceBox> boxes, const Unavailable& unavailable) {
  Replan again = replan(planning.plan, planning.schedule, planning.from, boxes, unavailable, target_.options.replicas);
  planning.plan = std::move(again.plan);
  planning.schedule = std::move(again.schedule);
  replaced_ = true;
}

void Restore::replan_and_run(std::shared_ptr<Planning> planning, std::span<const PieceBox> missing,
                             const Unavailable& unavailable) {
  plan_again(*planning, missing, unavailable);
  owner_.on_stage(Stage::bind);
  start_run(std::move(planning), {.staging = std::move(staging_), .lost = unavailable.lost});
}

// What was moved so far, as if only all but `missing` had been planned.
RestoreReport Restore::report_without(std::span<const PieceBox> missing) const {
  RestoreReport moved = report_of_run({}, false);
  for (const PieceBox& one : missing) {
    if (run_->movement() != nullptr) moved.needed_bytes -= bytes_of(run_->planning(), *target_.wanted.manifest, one);
  }
  moved.lost = run_->replaced();
  moved.resent_bytes = moved.moved_bytes + moved.local_bytes - moved.overread_bytes - moved.needed_bytes;
  RestoreReport report = before_;
  report += moved;
  return report;
}

// --- a restore that has ended, and is resumed, and one that waits for another holder ---

std::unique_ptr<Unfinished> Restore::leave() {
  if (search_) {
    auto left = search_->take();
    left->report = before_;
    left->values = std::move(values_);
    return left;
  }
  auto left = std::make_unique<Unfinished>();
  if (run_ && target_.outlives_sources) {
    left->missing = run_->unproven();
    left->report = report_without(left->missing);
    left->planning = run_->share_planning();
    left->unavailable = run_->unavailable(corruption_.holders());
    left->values = std::move(values_);
  } else {
    left->report = report({}, false);
    left->report.needed_bytes = 0;
    left->report.resent_bytes = left->report.moved_bytes + left->report.local_bytes - left->report.overread_bytes;
  }
  return left;
}

// Every missing box has a holder.
void Restore::resume() {
  if (stopped_ || !search_) return;
  const auto left = std::exchange(search_, nullptr)->take();
  zeroed_ = left->planning->resolved.zeroed;
  if (left->missing.empty()) return on_verified();
  replan_and_run(left->planning, left->missing, left->unavailable);
}

// --- the end, or another plan ---

void Restore::note_withdrawn(Rank source, const Error& withdrawn) {
  gone_ = LostSource{source, withdrawn.code(), withdrawn.what(), target_.seconds_at(context_.clock.now())};
}

void Restore::stop() {
  stopped_ = true;
  reconnect_.stop();
  discovery_.stop();
  if (search_) search_->stop();
  if (run_) run_->stop();
  if (rounds_) rounds_->stop();
}

bool Restore::quiet(bool fabrics_dead) const {
  return commit_.quiet() && (!run_ || run_->quiet(fabrics_dead));
}

void Restore::restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn) {
  const ByteCount arrived = progress().first;
  if (gone) target_.gone.push_back(*gone);
  if (run_) {
    run_->release();
    for (std::size_t i = 0; i < method_count && run_->movement() != nullptr; ++i) {
      abandoned_bytes_[i] += run_->movement()->tally().method_bytes(static_cast<Method>(i));
    }
    const auto losses = run_->losses();
    before_.lost.insert(before_.lost.end(), losses.begin(), losses.end());
    if (gone_) gone_->boxes_replanned = run_->planning().schedule.items.size();
    staging_ = run_->take_staging();
    run_.reset();
  }
  if (gone_) {
    gone_->resent_bytes = arrived;
    before_.lost.push_back(*std::exchange(gone_, std::nullopt));
  }
  before_.resent_bytes += std::exchange(before_.needed_bytes, 0);  // moved for another generation
  corruption_ = {};
  replaced_ = false;
  values_.clear();
  zeroed_.clear();
  planned_.reset();
  events_.forget();
  earlier_.reset();
  stopped_ = false;
  owner_.on_stage(Stage::plan);
  discovery_.restart(withdrawn);
}

void Restore::release() {
  if (run_) run_->release();
  discovery_.stop();
  callbacks_.end();
  events_.take_back();
  if (rounds_) rounds_->stop();
}

void Restore::keep() {
  CachedRestore cached{.from = target_.options.name,
                       .wanted = target_.catalog(),
                       .places = target_.places,
                       .manifest = target_.wanted.manifest,
                       .scope = discovery_.value_scope(),
                       .replicas = target_.options.replicas,
                       .method = target_.method};
  if (!run_ || replaced_ || !run_->keep_in(cached)) return;
  cached.placed = std::move(target_.placed);
  context_.cache.keep(std::make_unique<CachedRestore>(std::move(cached)));
}

// --- queries ---

Error Restore::late(Stage stage) const {
  if (planned_) return {ErrorCode::timed_out, "the deadline passed while the restore stood at its values"};
  if (stage == Stage::commit) return {ErrorCode::timed_out, "the deadline passed while zeros were written"};
  if (run_ && reads(stage)) return run_->late();
  return search_ ? search_->late() : discovery_.late();
}

std::string Restore::awaited(Stage stage) const {
  if (planned_ || stage == Stage::commit || stage == Stage::stopping) return "";
  if (run_ && reads(stage)) return run_->awaited();
  return search_ ? search_->awaited() : discovery_.awaited();
}

std::uint64_t Restore::advance(Stage stage) const {
  return progress().first + (run_ && stage != Stage::move ? run_->answers() : 0);
}

std::string Restore::title() const {
  const int rank = to_int(target_.catalog().layout_rank());
  if (target_.exchange_losses) return fmt::format("the exchange as layout rank {}", rank);
  if (target_.only) return fmt::format("a copy of '{}' of layout rank {}", target_.options.name, rank);
  return fmt::format("'{}' as layout rank {}", target_.options.name, rank);
}

std::string Restore::outcome(const RestoreReport& report, const std::exception_ptr& error) const {
  const std::string done = target_.exchange_losses || target_.only ? "done"
                           : target_.options.bind_only             ? "bound"
                                                                   : "restored";
  return fmt::format("{} is {}{}{}", title(), error ? "not " : "", done, figures_text(report)) +
         (error ? "; " + why_text(error) : "");
}

// From the rows that the report has.
void Restore::trace_moved() const {
  telemetry::Trace* const trace = context_.trace;
  if (trace == nullptr || movement() == nullptr) return;
  for (const MovedRow& moved : moved_rows(report_input(run_->chosen(), {}, false))) {
    if (moved.began == move::Tally::WallClock::time_point::max()) continue;
    const PeerReport& row = moved.row;
    const std::string source = fmt::format("source rank {}", to_int(row.rank));
    const auto slash = row.path.find('/');
    const auto took =
        std::chrono::duration_cast<Clock::Time::duration>(std::chrono::duration<double>(row.measured_seconds));
    trace->add(fmt::format("{}: {}", source, row.path),
               {{"shardwire.source.move",
                 moved.began,
                 moved.began + took,
                 {{"shardwire.source.rank", to_int(row.rank)},
                  {"shardwire.transport", row.path.substr(0, slash)},
                  {"shardwire.method", slash == std::string::npos ? row.path : row.path.substr(slash + 1)},
                  {"shardwire.bytes", static_cast<std::int64_t>(row.bytes)},
                  {"shardwire.seconds.predicted", row.predicted_seconds}}}});
  }
}

std::vector<telemetry::Attribute> Restore::attributes(const RestoreReport& report,
                                                      const std::exception_ptr& error) const {
  const std::string operation = target_.exchange_losses     ? "exchange"
                                : target_.only              ? "copy"
                                : target_.options.bind_only ? "bind"
                                                            : "restore";
  std::vector<telemetry::Attribute> attributes{
      {"shardwire.operation", operation},
      {"shardwire.publication.name", target_.options.name},
      {"shardwire.layout.rank", to_int(target_.catalog().layout_rank())},
      {"shardwire.bytes.needed", static_cast<std::int64_t>(report.needed_bytes)},
      {"shardwire.bytes.moved", static_cast<std::int64_t>(report.moved_bytes)}};
  if (report.step) attributes.emplace_back("shardwire.step", *report.step);
  if (const auto code = telemetry::code_of(error)) {
    attributes.emplace_back("error.type", std::string(to_string(*code)));
  }
  return attributes;
}

std::pair<ByteCount, ByteCount> Restore::progress() const {
  const Movement* const moving = movement();
  if (search_) return {before_.needed_bytes, before_.needed_bytes + search_->missing_bytes()};
  if (moving == nullptr) return {before_.needed_bytes, before_.needed_bytes};
  return {before_.needed_bytes + moving->tally().done_bytes(), before_.needed_bytes + moving->tally().expected_bytes()};
}

RestoreReport Restore::report(const StageSeconds& seconds, bool failed) const {
  RestoreReport report = before_;
  report += report_of_run(seconds, failed);
  return report;
}

ReportInput Restore::report_input(const ChosenTransfers& chosen, const StageSeconds& seconds, bool failed) const {
  ReportInput input{.options = target_.options,
                    .fabrics = context_.fabrics,
                    .session = context_.facts(),
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
  return input;
}

RestoreReport Restore::report_of_run(const StageSeconds& seconds, bool failed) const {
  const ChosenTransfers chosen = run_ ? run_->chosen() : ChosenTransfers();
  RestoreReport report = make_report(report_input(chosen, seconds, failed));
  if (run_) report.lost = run_->losses();
  if (run_) {
    for (const FoundCorrupt& one : run_->corrupt()) report.corrupt.push_back(one.box);
  }
  return report;
}

}  // namespace shardwire::restore
