// SPDX-License-Identifier: Apache-2.0
#include "restore/discovery.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "restore/parked_attempt.hpp"
#include "restore/publishers.hpp"
#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

// In larger jobs the addresses are learnt when the plan tells which of them matter.
constexpr std::size_t max_looked_up_early = 64;
// Nor are they connected before that: most plans of a larger job name few of them.
constexpr std::size_t max_dialled_early = 8;

}  // namespace

RecordCheck::RecordCheck(const Context& context, std::string name, Duration patience, Callbacks::Failed failed)
    : context_(context),
      name_(std::move(name)),
      patience_(patience),
      callbacks_(std::move(failed)),
      timer_(context.clock),
      next_request_(context.first_request()) {
}

RecordCheck::~RecordCheck() {
  stop();
}

void RecordCheck::stop() {
  callbacks_.restart();
  timer_.stop();
  done_ = nullptr;
  for (const auto& [link, watcher] : std::exchange(watched_, {})) link->unwatch(watcher);
}

void RecordCheck::ask(const Records& records, Done done) {
  stop();
  done_ = std::move(done);
  stale_.clear();
  awaited_ = 1;  // this call
  const std::size_t count = std::min(records.size(), max_asked);
  for (std::size_t i = 0; i < count; ++i) {
    const auto& record = records[(static_cast<std::size_t>(context_.member) + i) % records.size()];
    if (record.member != context_.member) {
      ask_one(record);
    } else if (is_own_gone(record)) {
      stale_.push_back(record);
    }
  }
  timer_.start(patience_, callbacks_.wrap([this] {
    awaited_ = 1;
    answered();
  }));
  answered();
}

bool RecordCheck::is_own_gone(const wire::PublicationRecord& record) const {
  const auto own = context_.own_publication(name_);
  return own == nullptr || own->generation != record.generation;
}

void RecordCheck::ask_one(const wire::PublicationRecord& record) {
  std::shared_ptr<SourceLink> link;
  try {
    link = context_.link(record);
  } catch (const Error&) {  // unreachable
    return;
  }
  ++awaited_;
  const auto watcher = link->watch(callbacks_.wrap([this](const Error&) { answered(); }));  // then no answer follows
  watched_.emplace_back(link, watcher);
  const std::uint64_t number = next_request_++;
  link->request(number, wire::Confirm{number, name_, record.generation},
                callbacks_.wrap([this, record, watcher, link = link.get()](wire::Message& message) {
                  link->unwatch(watcher);
                  const auto* confirmed = std::get_if<wire::Released>(&message);
                  if (confirmed != nullptr && !confirmed->intact) stale_.push_back(record);
                  answered();
                }));
}

void RecordCheck::answered() {
  if (--awaited_ != 0 || !done_) return;
  const Done done = std::move(done_);
  const Records stale = std::move(stale_);
  stop();
  done(stale);
}

Discovery::Discovery(const Context& context, Events events, const Target& target, std::shared_ptr<Planning> earlier)
    : context_(context),
      events_(std::move(events)),
      options_(target.options),
      roster_(context, target),
      wanted_(target.wanted),
      callbacks_([this](const std::exception_ptr& error) { failed(error); }),
      descriptions_(context, target.options.notice,
                    {.holders = [this] { return sources(); },
                     .described = [this] { described(); },
                     .failed = [this](const std::exception_ptr& error) { failed(error); },
                     .refused = [this](const Error& why) { refused(why); },
                     .asked = [this](SourceLink& link) { asked(link); }}),
      record_check_(context, target.options.name, target.options.notice, events_.failed),
      grace_(context.clock),
      earlier_(std::move(earlier)),
      may_leave_out_(target.outlives_sources) {
}

void Discovery::start() {
  running_ = true;
  directory_changed();
}

void Discovery::directory_changed() {
  if (!running_) return;
  callbacks_.run([this] {
    roster_.follow();
    try_to_plan();
  });
}

void Discovery::restart(const std::optional<Error>& withdrawn) {
  stop();
  if (withdrawn) withdrawn_ = withdrawn;
  step_choice_.reset();
  keepers_wait_.reset();
  descriptions_wait_.reset();
  planning_.reset();
  earlier_.reset();
  used_earlier_ = false;
  planning_now_ = false;
  start();
}

void Discovery::stop() {
  running_ = false;
  callbacks_.restart();
  descriptions_.stop();
  record_check_.stop();
  grace_.stop();
}

// --- known publications ---

Discovery::Records Discovery::sources() const {
  auto records = roster_.publications();
  if (options_.step) std::erase_if(records, [&](const auto& record) { return record.step != *options_.step; });
  if (!options_.step && options_.step_rule != StepRule::newest_complete) keep_one_origin(records);
  return records;
}

bool Discovery::are_published(const Records& records) const {
  const auto now = sources();
  return std::ranges::all_of(records, [&](const wire::PublicationRecord& record) {
    auto found = std::ranges::lower_bound(now, record.layout_rank, {}, &wire::PublicationRecord::layout_rank);
    while (found != now.end() && found->layout_rank == record.layout_rank && *found != record) ++found;
    return found != now.end() && *found == record;
  });
}

Discovery::Records Discovery::in_scope(Records records) const {
  const std::int32_t own = to_int(wanted_.catalog->layout_rank());
  std::erase_if(records, [&](const wire::PublicationRecord& record) {
    return wanted_.scope == ValueScope::none || (wanted_.scope == ValueScope::own_rank && record.layout_rank != own);
  });
  return records;
}

int Discovery::source_ranks() const {
  const auto& manifests = context_.metadata.manifests;
  for (const auto& record : roster_.publications()) {
    if (const auto found = manifests.find(record.manifest); found != manifests.end()) return found->second->ranks;
  }
  return 0;
}

Situation Discovery::situation() const {
  const Error* const lost = context_.membership.lost();
  return {.from = options_.name,
          .step = options_.step,
          .target = wanted_.catalog->layout_rank(),
          .member = context_.member,
          .published = roster_.publications(),
          .source_ranks = source_ranks(),
          .possible = roster_.possible(0, options_.step),
          .departed = context_.directory.departed(),
          .gaps = last_gaps_,
          .absent = last_absent_,
          .undescribed = descriptions_.awaited(),
          .withdrawn = withdrawn_,
          .rendezvous_lost = lost == nullptr ? std::nullopt : std::optional(*lost)};
}

Error Discovery::late() const {
  if (last_gaps_.empty()) return late_in_plan(situation());
  try {
    return incomplete_plan(true);
  } catch (const Error& error) {
    return error;
  }
}

std::string Discovery::awaited() const {
  if (planning_now_) return "";
  if (!roster_.is_known()) return publishers_of(options_.name);
  return awaited_text(situation());
}

// --- planning ---

// Called after every change. Plans at once when every rank of the source layout has published or never will; else after
// the grace, since a cover may be complete without the missing ranks.
void Discovery::try_to_plan(bool asks) {
  if (!running_) return;  // a description that was awaited for another plan
  record_check_.stop();
  if (planning_now_) {
    overtaken_ = true;
    return;
  }
  overtaken_ = false;
  Records records = sources();
  if (records.empty()) {
    // Sources at another step still tell the number of ranks.
    const Records others = roster_.publications();
    const bool known = roster_.is_known() && descriptions_.fetch(others, in_scope(others));
    if (!known || !roster_.possible(source_ranks(), options_.step).empty() || waits_for_keepers()) return;
    context_.membership.require_rendezvous(fmt::format("the other publishers of '{}'", options_.name));
    throw nobody_publishes(situation());
  }
  records = choose_step(std::move(records), asks);
  if (records.empty()) return;
  if (records.size() <= max_looked_up_early) context_.look_ahead(records);
  dials_early_ = records.size() <= max_dialled_early;
  if (dials_early_) dial(records);
  const Records with_values = in_scope(records);
  left_out_ = asks ? !descriptions_.fetch(records, with_values) : !descriptions_.knows(records, with_values);
  if (left_out_ && chooses()) return wait_for_descriptions(records);
  if (left_out_) records = described_of(std::move(records));
  if (records.empty()) return;
  try {
    check_layouts(records, context_.metadata, options_.name);
  } catch (const Error& error) {
    if (!is_older(records)) throw;
    return pass_over(records, error);
  }
  const int ranks = context_.metadata.manifests.at(records.front().manifest)->ranks;
  const bool one_step =
      std::ranges::all_of(records, [&](const auto& record) { return record.step == records.front().step; });
  const std::optional<std::int64_t> step = chooses() ? records.front().step : options_.step;
  const bool all = open_ranks(records, {.ranks = ranks}).empty() || roster_.possible(ranks, step).empty();
  if (all && one_step) return make_plan(records, !left_out_);
  if (waits_for_grace(records, one_step)) return;
  if (!one_step) throw steps_differ(situation());
  make_plan(records, false);
}

// The links are made while descriptions come.
void Discovery::dial(const Records& records) {
  for (const auto& record : records) {
    if (record.member == context_.member || !dialled_.emplace(record.member, record.epoch).second) continue;
    try {
      context_.link(record);
    } catch (const Error&) {  // made again if the plan names this source
    }
  }
}

// The publisher that is asked is most likely a source.
void Discovery::asked(SourceLink& link) const {
  if (dials_early_) link.prepare_ahead();
}

// Ranks that restore one state together name its step, and have to take it from one session. What is left of a session that has
// lost a host may hold all that one rank wants, and not what another one does.
Discovery::Records Discovery::choose_step(Records records, bool asks) {
  if (chooses()) {
    Records next = options_.step ? step_choice_.next(records, [this](const Records& one) { return is_whole(one); })
                                 : step_choice_.next(records);
    if (!next.empty()) return options_.step && waits_for_all(records, next, asks) ? Records() : next;
    const wire::PublicationRecord newest = by_preference(records).front().records.front();
    const auto known = context_.metadata.manifests.find(newest.manifest);
    const bool described = known != context_.metadata.manifests.end();
    if (described && roster_.possible(known->second->ranks, newest.step).empty() && !waits_for_keepers()) {
      throw incomplete_plan(false);
    }
    return next;
  }
  if (const auto step = newest_common_step(records)) {
    std::erase_if(records, [&](const auto& record) { return record.step != *step; });
  }
  return records;
}

bool Discovery::is_whole(const Records& state) const {
  const auto& manifests = context_.metadata.manifests;
  const auto known = manifests.find(state.front().manifest);
  return known != manifests.end() && open_ranks(state, {.ranks = known->second->ranks}).empty();
}

// A state of an earlier session is to be taken, and another one may be whole: its ranks are not known yet.
bool Discovery::waits_for_all(const Records& records, const Records& next, bool asks) {
  if (next.front().origin == 0) return false;
  const Records with_values = in_scope(records);
  const bool all = asks ? descriptions_.fetch(records, with_values) : descriptions_.knows(records, with_values);
  return !all && waits(descriptions_wait_, options_.notice, false);
}

bool Discovery::chooses() const {
  if (!options_.step) return options_.step_rule == StepRule::newest_complete;
  const Records records = sources();
  return std::ranges::any_of(records, [&](const auto& record) { return record.origin != records.front().origin; });
}

// A state that is to be preferred to this one is published, whose sources decide whether the restore fails.
bool Discovery::is_older(const Records& records) const {
  if (!chooses()) return false;
  const std::vector<PublishedState> states = by_preference(sources());
  return !states.empty() && states.front().of != StateOf::of(records.front());
}

void Discovery::pass_over(const Records& records, const Error& why) {
  context_.log(LogLevel::warning, fmt::format("restore of '{}': step {} cannot be used: {}", options_.name,
                                              records.front().step, why.what()));
  step_choice_.note_incomplete(records, {});
  try_to_plan();
}

// Sources of a newer step that do not answer must not keep a restore from an older one. They have published, so they are
// not absent: only silence for `notice` passes them over.
void Discovery::wait_for_descriptions(const Records& records) {
  if (waits(descriptions_wait_, options_.notice, false)) return;
  const std::int64_t step = records.front().step;
  Records older;
  bool passed = options_.step.has_value();  // then all others may be taken
  for (const PublishedState& state : by_preference(sources())) {
    const bool is_this = state.of == StateOf::of(records.front());
    if (passed && !is_this) older.insert(older.end(), state.records.begin(), state.records.end());
    passed = passed || is_this;
  }
  if (step_choice_.is_exhausted(older)) return;
  undescribed_.insert(step);
  step_choice_.note_incomplete(records, {});
  descriptions_wait_.reset();
  try_to_plan();
}

// A publisher that does not answer may hold nothing that others do not hold.
Discovery::Records Discovery::described_of(Records records) {
  if (!may_leave_out_ || waits(descriptions_wait_, options_.notice, false)) return {};
  std::erase_if(records, [&](const auto& record) { return !descriptions_.knows({record}, in_scope({record})); });
  return records;
}

void Discovery::described() {
  descriptions_wait_.reset();
  for (const std::int64_t step : std::exchange(undescribed_, {})) step_choice_.forget(step);
  try_to_plan();
}

// Another step may come from others.
void Discovery::refused(const Error& why) {
  if (!chooses()) throw why;
}

bool Discovery::waits_for_grace(const Records& records, bool one_step) {
  const Duration waited = context_.clock.now() - waited_since(records, one_step);
  if (waited >= options_.discovery_grace) return false;
  grace_.start(options_.discovery_grace - waited, callbacks_.wrap([this] { try_to_plan(); }));
  return true;
}

bool Discovery::waits_for_keepers() {
  if (!context_.has_keeper || context_.directory.departed().empty()) return false;
  return waits(keepers_wait_, options_.notice, true);
}

bool Discovery::waits(std::optional<Clock::Time>& began, Duration limit, bool asks) {
  const Clock::Time now = context_.clock.now();
  if (!began) began = now;
  const Duration waited = now - *began;
  if (waited >= limit) return false;
  grace_.start(limit - waited, callbacks_.wrap([this, asks] { try_to_plan(asks); }));
  return true;
}

// Since when the restore waits for absent ranks, or for ranks behind others. Only progress of these begins a wait anew:
// sources that update without end do not.
Clock::Time Discovery::waited_since(const Records& records, bool one_step) {
  const Clock::Time now = context_.clock.now();
  auto& ranks_wait = ranks_waits_[chooses() ? records.front().step : 0];
  if (!ranks_wait || records.size() > ranks_wait->progress) ranks_wait = {now, records.size()};
  if (one_step) {
    steps_wait_.reset();
    return ranks_wait->since;
  }
  const std::int64_t least = std::ranges::min_element(records, {}, &wire::PublicationRecord::step)->step;
  if (!steps_wait_ || least > steps_wait_->progress) steps_wait_ = {now, least};
  return steps_wait_->since;
}

void Discovery::take_values() {
  planning_->value_lists.clear();
  planning_->values.clear();
  planning_->scope = wanted_.scope;
  for (const auto& record : in_scope(planning_->records)) {
    const auto& values = context_.metadata.values.at(record.values);
    planning_->value_lists.push_back(values);
    planning_->values.push_back({Rank{record.layout_rank}, values.get()});
  }
}

void Discovery::make_plan(const Records& records, bool everybody) {
  if (earlier_ && same_sources(earlier_->records, records)) return plan_again(records);
  used_earlier_ = false;
  earlier_.reset();
  planning_now_ = true;
  planning_ = std::make_shared<Planning>();
  planning_->records = records;
  for (const auto& record : records) {
    planning_->manifests.push_back(context_.metadata.manifests.at(record.manifest));
  }
  take_values();
  // Planning may take long, so it runs off the loop, which serves readers meanwhile.
  context_.copier.submit(
      [planning = planning_, wanted = wanted_, member = context_.member, replicas = options_.replicas] {
        try {
          plan_into(*planning, wanted, member, replicas);
        } catch (...) {
          planning->error = std::current_exception();
        }
      },
      callbacks_.wrap([this, everybody](const std::exception_ptr&) { planned(everybody); }));
}

// Reuses the pieces of an earlier restore; values may be new.
void Discovery::plan_again(const Records& records) {
  context_.log(LogLevel::debug, "restore of '" + options_.name + "': the plan of an earlier one holds");
  used_earlier_ = true;
  planning_ = std::move(earlier_);
  planning_->records = records;
  if (wanted_.scope != ValueScope::none) {
    take_values();
    planning_->resolved = resolve_values(*wanted_.catalog, planning_->from, planning_->plan, planning_->values,
                                         planning_->scope, agreement_on_elements(options_.replicas));
  }
  planned(true);
}

void Discovery::planned(bool everybody) {
  planning_now_ = false;
  if (const auto error = planning_->error) {
    if (!is_older(planning_->records)) std::rethrow_exception(error);
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      return pass_over(planning_->records, known);
    }
  }
  if (overtaken_ && !are_published(planning_->records)) return try_to_plan();  // the plan names a withdrawn publication
  const ResolvedValues& resolved = planning_->resolved;
  // A publication that was left out may hold what nobody else holds: then it is waited for, and nothing counts as absent.
  if (left_out_ && (!planning_->plan.gaps.empty() || !resolved.skipped.empty() || !resolved.zeroed.empty())) {
    if (overtaken_) try_to_plan();
    return;
  }
  last_gaps_ = planning_->plan.gaps;
  last_absent_ = resolved.absent;
  if (resolved.values_unknown) {
    wanted_.scope = ValueScope::all;  // a key absent as a tensor may exist as a value
    return try_to_plan();
  }
  if (!last_gaps_.empty() && chooses()) {
    step_choice_.note_incomplete(planning_->records, last_gaps_);
    ranks_waits_.erase(planning_->records.front().step);  // its next change begins a wait: each plan costs time
    return try_to_plan();
  }
  if (!last_gaps_.empty()) {
    if (overtaken_) return try_to_plan();  // a plan of the current state decides whether to wait
    const bool final = everybody || roster_.possible(planning_->from.ranks, options_.step).empty();
    if (final && !waits_for_keepers()) throw incomplete_plan(false);
    ranks_waits_.clear();  // the next change begins a wait: each plan costs time
    return;
  }
  if (resolved.refusal && is_older(planning_->records)) return pass_over(planning_->records, *resolved.refusal);
  if (resolved.refusal) throw Error(*resolved.refusal);
  const Records published = roster_.publications();
  const StateOf taken = StateOf::of(planning_->records.front());
  planning_->incomplete_steps = step_choice_.incomplete_before(published, taken);
  if (!options_.step) warn_of_higher_step(context_, options_.name, published, taken);
  running_ = false;
  grace_.stop();
  record_check_.stop();
  events_.planned(std::move(planning_));
}

// A restore sees what members published before it began. This member's directory may not have heard of that yet.
void Discovery::failed(const std::exception_ptr& error) {
  const ErrorCode code = code_in(error);
  const bool by_content =
      code == ErrorCode::layout_mismatch || code == ErrorCode::step_mismatch || code == ErrorCode::peer_lost;
  if (!running_ || together_ || !by_content) return events_.failed(error);
  grace_.stop();
  record_check_.ask(roster_.publications(), [this, error](const Records& stale) {
    return stale.empty() ? events_.failed(error) : begin_anew(stale);
  });
}

void Discovery::begin_anew(const Records& stale) {
  std::set<Rank> ranks;
  for (const wire::PublicationRecord& record : stale) ranks.insert(Rank{record.layout_rank});
  const std::vector<Rank> named(ranks.begin(), ranks.end());
  const std::string why = fmt::format("{} withdrew '{}'", source_ranks_text(named), options_.name);
  context_.log(LogLevel::info,
               fmt::format("restore of '{}': {}, which the directory does not know yet", options_.name, why));
  events_.stale(stale);
  restart(Error(ErrorCode::withdrawn, why, named));
}

// Errors: throws Error{peer_lost} if publications of the step may exist that this member does not hear of.
Error Discovery::incomplete_plan(bool at_deadline) const {
  if (options_.step && roster_.publications().size() > sources().size()) {
    context_.membership.require_rendezvous(
        fmt::format("the publishers of step {} of '{}'", *options_.step, options_.name));
  }
  Situation now = situation();
  now.at_deadline = at_deadline;
  if (!chooses()) return incomplete(now);
  const std::vector<IncompleteStep> steps = step_choice_.incomplete();
  if (steps.empty() || !step_choice_.is_exhausted(sources())) return late_in_plan(now);  // another one is looked at
  const auto of = std::ranges::find(now.published, steps.front().step, &wire::PublicationRecord::step);
  if (of == now.published.end()) return late_in_plan(now);
  const auto known = context_.metadata.manifests.find(of->manifest);
  if (known != context_.metadata.manifests.end()) now.source_ranks = known->second->ranks;
  return no_step_complete(now, steps);
}

}  // namespace shardwire::restore
