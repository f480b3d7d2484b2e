// SPDX-License-Identifier: Apache-2.0
#include "restore/holder_search.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>

#include "restore/verdict.hpp"

namespace shardwire::restore {

namespace {

bool is_planned(const Planning& planning, std::int32_t layout_rank) {
  return std::ranges::find(planning.records, layout_rank, &wire::PublicationRecord::layout_rank) !=
         planning.records.end();
}

// The first publication of a rank is the rank, further ones are its copies.
void add(Planning& planning, const wire::PublicationRecord& record, const std::shared_ptr<const Manifest>& manifest) {
  const Rank rank{record.layout_rank};
  Rank holder = rank;
  if (is_planned(planning, record.layout_rank)) {
    holder = Rank{planning.from.holders()};
    planning.from.copies.push_back(rank);
  } else {
    auto section = std::ranges::find(planning.from.sections, manifest, &Section::manifest);
    if (section == planning.from.sections.end()) {
      section = planning.from.sections.insert(section, Section{manifest, {}});
    }
    section->ranks.insert(std::ranges::upper_bound(section->ranks, rank), rank);
  }
  planning.records.push_back(record);
  planning.manifests.push_back(manifest);
  planning.holders.push_back(holder);
}

void require_one_layout(const Planning& planning, const std::string& from) {
  Metadata known;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    known.manifests.emplace(planning.records[i].manifest, planning.manifests[i]);
  }
  auto records = planning.records;
  std::ranges::stable_sort(records, {}, &wire::PublicationRecord::layout_rank);
  check_layouts(records, known, from);
}

// Of `published`, publications of the plan's state by layout ranks that were not published when it was made; by rank.
std::vector<wire::PublicationRecord> later_ranks(const Planning& planning,
                                                 std::span<const wire::PublicationRecord> published) {
  const StateOf state = StateOf::of(planning.records.front());
  std::vector<wire::PublicationRecord> later;
  std::ranges::copy_if(published, std::back_inserter(later), [&](const wire::PublicationRecord& record) {
    return StateOf::of(record) == state && !is_planned(planning, record.layout_rank);
  });
  std::ranges::stable_sort(later, {}, &wire::PublicationRecord::layout_rank);
  return later;
}

// Members are left that may still publish such ranks.
bool awaits_later_ranks(const Planning& planning, const RosterView& roster) {
  const int ranks = planning.from.ranks;
  return !open_ranks(planning.records, {.ranks = ranks}).empty() &&
         !roster.possible(ranks, planning.records.front().step).empty();
}

// `planning`: copied. `later`: at least one, ascending by layout rank, with their manifests. Pure.
// Errors: throws Error{layout_mismatch} if a later rank declares other tensors or another number of ranks.
LaterPlan plan_with(Planning planning, std::span<const PieceBox> missing, const Unavailable& unavailable,
                    std::span<const wire::PublicationRecord> later,
                    std::span<const std::shared_ptr<const Manifest>> manifests, const Wanted& wanted, int member,
                    const RestoreOptions& options) {
  for (std::size_t i = 0; i < later.size(); ++i) add(planning, later[i], manifests[i]);
  require_one_layout(planning, options.name);
  Planner planner = planner_of(planning, wanted, member, options.replicas);
  const Plan before = std::exchange(planning.plan, planner.plan(wanted.catalog->layout_rank()));
  CarriedOver carried = carry_over(before, missing, planning.plan);
  const bool held = without_holder(planning.plan, carried.boxes, unavailable.lost, unavailable.corrupt).empty();
  if (!held || !carried.gaps.empty()) return {};
  planning.plan.gaps.clear();  // what was settled when the restore was planned
  planning.schedule = planner.schedule(planning.plan);
  return {std::make_shared<Planning>(std::move(planning)), std::move(carried.boxes)};
}

ByteCount bytes_missing(const Unfinished& unfinished, const Manifest& wanted) {
  ByteCount bytes = 0;
  for (const PieceBox& one : unfinished.missing) bytes += bytes_of(*unfinished.planning, wanted, one);
  return bytes;
}

bool has_keepers(const Context& context) {
  return context.has_keeper && context.membership.lost() == nullptr;
}

}  // namespace

HolderSearch::HolderSearch(const Context& context, const Target& target, std::unique_ptr<Unfinished> unfinished,
                           std::exception_ptr loss, Events events)
    : context_(context),
      target_(target),
      roster_(context, target),
      unfinished_(std::move(unfinished)),
      missing_bytes_(bytes_missing(*unfinished_, *target.wanted.manifest)),
      loss_(std::move(loss)),
      events_(std::move(events)),
      callbacks_(events_.failed),
      descriptions_(context, target.options.notice,
                    {.holders = [this] { return later_ranks(*unfinished_->planning, roster_.publications()); },
                     .described = [this] { look(); },
                     .failed = events_.failed}),
      keepers_(context.clock),
      began_(context.clock.now()) {
}

bool HolderSearch::may_find(const Context& context, const Target& target, const Planning& planning) {
  if (target.only) return false;
  const RosterView roster(context, target);
  return has_keepers(context) || !later_ranks(planning, roster.publications()).empty() ||
         awaits_later_ranks(planning, roster);
}

void HolderSearch::start() {
  // A keeper that holds what a lost member has published hears of its end, too, and publishes it then.
  if (loss_ && has_keepers(context_)) {
    keepers_.start(target_.options.notice, callbacks_.wrap([this] { look(); }));
  }
  directory_changed();
}

void HolderSearch::stop() {
  callbacks_.end();
  descriptions_.stop();
  keepers_.stop();
}

void HolderSearch::directory_changed() {
  if (callbacks_.ended() || found_) return;
  callbacks_.run([this] {
    roster_.follow();
    look();
  });
}

void HolderSearch::look() {
  if (found_ || planning_now_ || !roster_.is_known()) return;
  const Records published = roster_.publications();
  note_lost(published);
  refuse_others(published);
  add_copies(*unfinished_->planning, published);
  const std::vector<Gap> gaps = without_holder();
  if (gaps.empty()) {
    found_ = true;
    return events_.found();
  }
  const Records later = later_ranks(*unfinished_->planning, published);
  if (!later.empty() && later != tried_) return plan_with_later(later);
  if (loss_ && !may_find_more()) return events_.failed(with_gaps(loss_, gaps));
  context_.membership.require_rendezvous(fmt::format("holders of what is missing of '{}'", target_.options.name));
}

bool HolderSearch::may_find_more() const {
  return awaits_later_ranks(*unfinished_->planning, roster_) ||
         (has_keepers(context_) && context_.clock.now() - began_ < target_.options.notice);
}

// Planning may take long, so it runs off the loop.
void HolderSearch::plan_with_later(const Records& later) {
  if (!descriptions_.fetch(later, {})) return;
  std::vector<std::shared_ptr<const Manifest>> manifests;
  for (const wire::PublicationRecord& record : later) {
    manifests.push_back(context_.metadata.manifests.at(record.manifest));
  }
  context_.look_ahead(later);
  planning_now_ = true;
  tried_ = later;
  struct Made {
    LaterPlan plan{};
    std::exception_ptr error{};
  };
  const auto made = std::make_shared<Made>();  // owners: the job and its callback
  context_.copier.submit(
      [made, later, manifests, planning = *unfinished_->planning, missing = unfinished_->missing,
       unavailable = unfinished_->unavailable, wanted = target_.wanted, member = context_.member,
       options = target_.options] {
        try {
          made->plan = plan_with(planning, missing, unavailable, later, manifests, wanted, member, options);
        } catch (...) {
          made->error = std::current_exception();
        }
      },
      callbacks_.wrap([this, made](const std::exception_ptr&) {
        if (made->error) std::rethrow_exception(made->error);
        planned(made->plan);
      }));
}

void HolderSearch::planned(const LaterPlan& made) {
  planning_now_ = false;
  if (made.planning) {
    unfinished_->planning = made.planning;
    unfinished_->missing = made.missing;
    tried_.clear();
  }
  look();
}

// A publication that has gone never comes back: the same state that is published again is a further holder.
void HolderSearch::note_lost(const Records& published) {
  const Planning& planning = *unfinished_->planning;
  std::vector<Rank>& lost = unfinished_->unavailable.lost;
  for (std::size_t i = 0; i < planning.records.size(); ++i) {
    const Rank holder = planning.holders[i];
    if (std::ranges::find(published, planning.records[i]) == published.end() && !is_in(lost, holder)) {
      lost.push_back(holder);
    }
  }
}

// Bytes that are in place and bytes that are missing have to be of one state.
void HolderSearch::refuse_others(const Records& published) const {
  const std::vector<Rank> wanted = wanted_ranks();
  for (const wire::PublicationRecord& record : published) {
    if (!is_in(wanted, Rank{record.layout_rank})) continue;
    const auto planned = std::ranges::find_if(unfinished_->planning->records, [&](const auto& known) {
      return known.layout_rank == record.layout_rank && known.step == record.step && known.origin == record.origin;
    });
    if (planned == unfinished_->planning->records.end() || planned->manifest == record.manifest) continue;
    throw Error(
        ErrorCode::layout_mismatch,
        fmt::format("member {} publishes layout rank {} of '{}' at step {} with other tensors or layouts than "
                    "those of which the restore has received a part",
                    record.member, record.layout_rank, target_.options.name, record.step),
        shardwire::without_holder(unfinished_->planning->plan, unfinished_->missing, unfinished_->unavailable.lost),
        std::vector<Rank>{Rank{record.layout_rank}});
  }
}

std::vector<Gap> HolderSearch::without_holder() const {
  return shardwire::without_holder(unfinished_->planning->plan, unfinished_->missing, unfinished_->unavailable.lost);
}

std::vector<Rank> HolderSearch::wanted_ranks() const {
  const Planning& planning = *unfinished_->planning;
  std::set<Rank> ranks;
  for (const PieceBox& one : unfinished_->missing) {
    const auto& holders = planning.plan.holder_sets[planning.plan.pieces[one.piece].holders];
    if (!std::ranges::all_of(holders, [&](Rank rank) { return is_in(unfinished_->unavailable.lost, rank); })) continue;
    for (const Rank holder : holders) ranks.insert(planning.from.rank_of(holder));
  }
  return {ranks.begin(), ranks.end()};
}

std::string HolderSearch::awaited() const {
  if (planning_now_) return "";
  const std::vector<Rank> wanted = wanted_ranks();
  if (wanted.empty()) return publishers_of(target_.options.name);
  return fmt::format("a member to publish step {} of '{}' as {}", unfinished_->planning->records.front().step,
                     target_.options.name, source_ranks_text(wanted));
}

Error HolderSearch::late() const {
  const std::vector<Rank> wanted = wanted_ranks();
  const std::int64_t step = unfinished_->planning->records.front().step;
  std::vector<std::string> others;
  for (const wire::PublicationRecord& record : context_.directory.publications(target_.options.name)) {
    if (!is_in(wanted, Rank{record.layout_rank}) || record.step == step) continue;
    others.push_back(fmt::format("source rank {} is published at step {}", record.layout_rank, record.step));
  }
  return {others.empty() ? ErrorCode::timed_out : ErrorCode::step_mismatch,
          fmt::format("the deadline passed: no member publishes step {} of '{}' as {}, which held what is missing{}{}",
                      step, target_.options.name, source_ranks_text(wanted), others.empty() ? "" : "; ",
                      fmt::join(others, ", ")),
          without_holder(), wanted};
}

}  // namespace shardwire::restore
