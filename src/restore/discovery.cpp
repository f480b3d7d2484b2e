// SPDX-License-Identifier: Apache-2.0
#include "restore/discovery.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "restore/publishers.hpp"

namespace shardwire::restore {

namespace {

// The plan assumes that processes keep their ranks if this process did, and that none is colocated if it did not: only
// this process's old rank is known.
Topology topology_of(const std::vector<wire::PublicationRecord>& records, int member, Rank layout_rank, int ranks) {
  std::int32_t own = -1;
  int source_ranks = 0;
  for (const auto& record : records) {
    if (record.member == member) own = record.layout_rank;
    source_ranks = std::max(source_ranks, record.layout_rank + 1);
  }
  Topology topology;
  for (std::int32_t other = 0; other < ranks; ++other) {
    topology.colocated.push_back(own == to_int(layout_rank) && other < source_ranks ? other : -1);
  }
  topology.colocated[static_cast<std::size_t>(to_int(layout_rank))] = own;
  return topology;
}

// Pure.
void plan_into(Planning& planning, const Wanted& wanted, int member, Replicas replicas) {
  const Manifest& manifest = *wanted.manifest;
  const Rank target = wanted.catalog->layout_rank();
  planning.from = side_of(planning.records, planning.manifests);
  // Assumes that every rank of the new layout restores too: readers then spread evenly over replicas.
  JobLayout to{manifest.ranks, {{wanted.manifest, {}}}};
  for (int rank = 0; rank < manifest.ranks; ++rank) to.sections[0].ranks.push_back(Rank{rank});
  Planner planner(planning.from, std::move(to), topology_of(planning.records, member, target, manifest.ranks),
                  replicas);
  planning.plan = planner.plan(target);
  planning.resolved = resolve_values(*wanted.catalog, planning.from, planning.plan, planning.values, planning.scope,
                                     agreement_on_elements(replicas));
  if (!planning.plan.gaps.empty()) return;
  planning.schedule = planner.schedule(planning.plan);
  if (replicas == Replicas::compare) planning.others = OtherHolders(planner, planning.plan);
}

}  // namespace

Discovery::Discovery(Services& services, Listener& listener, Owner& owner, const RestoreOptions& options, Wanted wanted,
                     std::shared_ptr<Planning> earlier)
    : services_(services),
      listener_(listener),
      owner_(owner),
      options_(options),
      wanted_(std::move(wanted)),
      callbacks_([this](const std::exception_ptr& error) { owner_.on_failed(error); }),
      descriptions_(services, {.holders = [this] { return sources(); },
                               .described = [this] { try_to_plan(); },
                               .failed = [this](const std::exception_ptr& error) { owner_.on_failed(error); }}),
      grace_(services.clock()),
      earlier_(std::move(earlier)) {
}

void Discovery::start() {
  running_ = true;
  directory_changed();
}

void Discovery::directory_changed() {
  if (!running_) return;
  callbacks_.run([this] {
    services_.membership().watch(options_.from);
    try_to_plan();
  });
}

void Discovery::restart(const std::optional<wire::PublicationRecord>& gone, const std::optional<Error>& withdrawn) {
  stop();
  if (gone) gone_.emplace(gone->member, gone->epoch, gone->generation);
  if (withdrawn) withdrawn_ = withdrawn;
  planning_.reset();
  earlier_.reset();
  used_earlier_ = false;
  planning_now_ = false;
  grace_over_ = false;
  start();
}

void Discovery::stop() {
  running_ = false;
  callbacks_.restart();
  descriptions_.stop();
  grace_.stop();
}

// --- known publications ---

Discovery::Records Discovery::published() const {
  auto records = services_.directory().publications(options_.from);
  std::erase_if(records, [&](const auto& record) {
    return gone_.contains({record.member, record.epoch, record.generation});
  });
  std::ranges::sort(records, {}, &wire::PublicationRecord::layout_rank);
  return records;
}

Discovery::Records Discovery::sources() const {
  auto records = published();
  if (options_.step) std::erase_if(records, [&](const auto& record) { return record.step != *options_.step; });
  return records;
}

bool Discovery::are_published(const Records& records) const {
  const auto now = sources();
  return std::ranges::all_of(records, [&](const wire::PublicationRecord& record) {
    const auto found = std::ranges::lower_bound(now, record.layout_rank, {}, &wire::PublicationRecord::layout_rank);
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
  const auto& manifests = services_.metadata().manifests;
  for (const auto& record : published()) {
    if (const auto found = manifests.find(record.manifest); found != manifests.end()) return found->second->ranks;
  }
  return 0;
}

std::vector<int> Discovery::possible(int ranks) const {
  if (services_.membership().lost() != nullptr) return {};
  const auto records = published();
  const int member = services_.member();
  const bool listed = std::ranges::any_of(records, [&](const auto& record) { return record.member == member; });
  const bool own_on_its_way = !listed && services_.own_publication(options_.from) != nullptr;
  return possible_publishers(services_.directory(), records, {member, own_on_its_way, options_.step, ranks});
}

Situation Discovery::situation() const {
  const Error* const lost = services_.membership().lost();
  return {.from = options_.from,
          .step = options_.step,
          .target = wanted_.catalog->layout_rank(),
          .member = services_.member(),
          .published = published(),
          .source_ranks = source_ranks(),
          .possible = possible(0),
          .departed = services_.directory().departed(),
          .gaps = last_gaps_,
          .absent = last_absent_,
          .undescribed = descriptions_.awaited(),
          .withdrawn = withdrawn_,
          .rendezvous_lost = lost == nullptr ? std::nullopt : std::optional(*lost)};
}

Error Discovery::late() const {
  if (last_gaps_.empty()) return late_in_plan(situation());
  try {
    give_up_incomplete();
  } catch (const Error& error) {
    return error;
  }
}

// --- planning ---

// Called after every change. Plans at once when every rank of the source layout has published or never will; else after
// a pause without changes, since a cover may be complete without the missing ranks.
void Discovery::try_to_plan() {
  if (planning_now_) {
    overtaken_ = true;
    return;
  }
  overtaken_ = false;
  const Records records = sources();
  if (records.empty()) {
    // Sources at another step still tell the number of ranks.
    const bool known =
        services_.directory().knows(options_.from) && descriptions_.fetch(published(), in_scope(published()));
    if (!known || !possible(source_ranks()).empty()) return;
    services_.membership().require_rendezvous(fmt::format("the other publishers of '{}'", options_.from));
    throw nobody_publishes(situation());
  }
  if (!descriptions_.fetch(records, in_scope(records))) return;
  check_layouts(records, services_.metadata(), options_.from);
  const int ranks = services_.metadata().manifests.at(records.front().manifest)->ranks;
  const bool one_step =
      std::ranges::all_of(records, [&](const auto& record) { return record.step == records.front().step; });
  const bool all = records.size() == static_cast<std::size_t>(ranks) || possible(ranks).empty();
  if (all && one_step) return make_plan(records, true);
  if (!grace_over_) {
    grace_.start(options_.discovery_grace, callbacks_.wrap([this] {
      grace_over_ = true;
      try_to_plan();
    }));
    return;
  }
  grace_over_ = false;  // a later change restarts the wait
  if (!one_step) throw steps_differ(situation());
  make_plan(records, false);
}

void Discovery::take_values() {
  planning_->value_lists.clear();
  planning_->values.clear();
  planning_->scope = wanted_.scope;
  for (const auto& record : in_scope(planning_->records)) {
    const auto& values = services_.metadata().values.at(record.values);
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
    planning_->manifests.push_back(services_.metadata().manifests.at(record.manifest));
  }
  take_values();
  // Planning may take long, so it runs off the loop, which serves readers meanwhile.
  services_.copier().submit(
      [planning = planning_, wanted = wanted_, member = services_.member(), replicas = options_.replicas] {
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
  services_.log(LogLevel::debug, "restore of '" + options_.from + "': the plan of an earlier one holds");
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
  if (planning_->error) std::rethrow_exception(planning_->error);
  if (overtaken_ && !are_published(planning_->records)) return try_to_plan();  // the plan names a withdrawn publication
  const ResolvedValues& resolved = planning_->resolved;
  last_gaps_ = planning_->plan.gaps;
  last_absent_ = resolved.absent;
  if (resolved.values_unknown) {
    wanted_.scope = ValueScope::all;  // a key absent as a tensor may exist as a value
    grace_over_ = !everybody;         // that wait is over
    return try_to_plan();
  }
  if (!last_gaps_.empty()) {
    if (overtaken_) return try_to_plan();  // a plan of the current state decides whether to wait
    if (everybody || possible(planning_->from.ranks).empty()) give_up_incomplete();
    return;
  }
  if (resolved.refusal) throw Error(*resolved.refusal);
  running_ = false;
  grace_.stop();
  listener_.on_planned(std::move(planning_));
}

void Discovery::give_up_incomplete() const {
  if (options_.step && published().size() > sources().size()) {
    services_.membership().require_rendezvous(
        fmt::format("the publishers of step {} of '{}'", *options_.step, options_.from));
  }
  throw incomplete(situation());
}

}  // namespace shardwire::restore
