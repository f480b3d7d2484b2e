// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <utility>

#include "session/restore/run.hpp"
#include "support/list_of.hpp"

namespace shardwire {

namespace {

// One section per distinct manifest, its ranks ascending.
JobLayout side_of(const std::vector<wire::PublicationRecord>& records,
                  const std::vector<std::shared_ptr<const Manifest>>& manifests) {
  JobLayout side;
  std::map<const Manifest*, std::size_t> sections;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const auto [entry, fresh] = sections.emplace(manifests[i].get(), side.sections.size());
    if (fresh) side.sections.push_back({manifests[i], {}});
    side.sections[entry->second].ranks.push_back(Rank{records[i].layout_rank});
    side.ranks = std::max(side.ranks, manifests[i]->ranks);
  }
  for (Section& section : side.sections) std::sort(section.ranks.begin(), section.ranks.end());
  return side;
}

// Which rank of the old layout this process has is known; of the others it is supposed that they kept their number
// where this one did, and that nothing is colocated with them where not.
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

}  // namespace

std::vector<wire::PublicationRecord> RestoreRun::published() const {
  auto records = core_.directory().publications(options_.from);
  if (!gone_.empty()) {
    std::erase_if(records, [&](const auto& record) { return gone_.contains(generation_of(record)); });
  }
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.layout_rank < b.layout_rank; });
  return records;
}

std::vector<wire::PublicationRecord> RestoreRun::sources() const {
  auto records = published();
  if (options_.step) std::erase_if(records, [&](const auto& record) { return record.step != *options_.step; });
  return records;
}

bool RestoreRun::still_published(const std::vector<wire::PublicationRecord>& records) const {
  const auto now = sources();
  return std::all_of(records.begin(), records.end(), [&](const wire::PublicationRecord& record) {
    const auto found = std::lower_bound(now.begin(), now.end(), record.layout_rank,
                                        [](const auto& one, std::int32_t rank) { return one.layout_rank < rank; });
    return found != now.end() && *found == record;
  });
}

// Called whenever something became known. Plans at once when every rank of the source layout has published or never will;
// else once nothing has changed for a while, since a cover may be complete without the missing ones.
void RestoreRun::try_to_plan() {
  if (planning_now_) {
    overtaken_ = true;
    return;
  }
  overtaken_ = false;
  if (manifest_->tensors.empty() && wanted_.values().empty()) return commit();
  const auto records = sources();
  if (records.empty()) {
    // Sources at another step say how many there are.
    const bool known = core_.directory().knows(options_.from) && fetch_metadata(published());
    if (known && awaited(source_ranks()).empty()) nobody_left();
    return;
  }
  if (!fetch_metadata(records)) return;
  check_layouts(records);
  const int ranks = core_.metadata().manifests.at(records.front().manifest)->ranks;
  const bool one_step = std::all_of(records.begin(), records.end(),
                                    [&](const auto& record) { return record.step == records.front().step; });
  const bool all = records.size() == static_cast<std::size_t>(ranks) || awaited(ranks).empty();
  if (all && one_step) return make_plan(records, true);
  if (!grace_over_) {
    discovery_grace_.start(options_.discovery_grace, while_running([this] {
                             grace_over_ = true;
                             try_to_plan();
                           }));
    return;
  }
  grace_over_ = false;  // a later change starts the wait anew
  if (!one_step) steps_differ(records);
  make_plan(records, false);
}

// All sources describe parts of one layout, each another.
void RestoreRun::check_layouts(const std::vector<wire::PublicationRecord>& records) const {
  const auto ranks_of = [&](const auto& record) { return core_.metadata().manifests.at(record.manifest)->ranks; };
  const auto& first = records.front();
  for (const auto& record : records) {
    if (ranks_of(record) == ranks_of(first)) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("source rank {} declares a layout over {}, source rank {} over {}", first.layout_rank,
                            support::counted(ranks_of(first), "rank"), record.layout_rank, ranks_of(record)),
                std::vector<Rank>{Rank{first.layout_rank}, Rank{record.layout_rank}});
  }
  for (std::size_t i = 1; i < records.size(); ++i) {
    if (records[i].layout_rank != records[i - 1].layout_rank) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("members {} and {} both publish layout rank {} of '{}'", records[i - 1].member,
                            records[i].member, records[i].layout_rank, options_.from),
                std::vector<Rank>{Rank{records[i].layout_rank}});
  }
}

struct RestoreRun::Fetch {
  wire::Digest digest;
  wire::Digest wire::PublicationRecord::*field;  // which of a publication's digests it is
  std::vector<wire::PublicationRecord> holders;
  std::size_t attempt = 0;
  std::set<std::pair<std::int32_t, std::uint32_t>> tried;  // members and their turns
  std::function<void(const Bytes&)> keep;
};

template <typename Request, typename Reply>
void RestoreRun::fetch(const std::shared_ptr<Fetch>& fetch) {
  for (;; ++fetch->attempt) {
    if (fetch->attempt == fetch->holders.size() && !find_more_holders(*fetch)) return;
    // Readers begin with different holders, so that nobody is asked by all.
    const auto turn = static_cast<std::size_t>(core_.member()) + fetch->attempt;
    const wire::PublicationRecord& holder = fetch->holders[turn % fetch->holders.size()];
    fetch->tried.emplace(holder.member, holder.epoch);
    asked_[fetch->digest] = holder.layout_rank;
    try {
      return ask<Request, Reply>(fetch, core_.links().link(holder), holder.layout_rank);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_resources) throw;  // of this process: it will not reach others either
      continue;                                                // this one cannot be reached
    }
  }
}

// Holders that published while the others were asked; where there are none, a change in the directory will bring us back.
bool RestoreRun::find_more_holders(Fetch& fetch) {
  auto records = sources();
  std::erase_if(records, [&](const wire::PublicationRecord& record) {
    return record.*fetch.field != fetch.digest || fetch.tried.contains({record.member, record.epoch});
  });
  fetch.holders = std::move(records);
  fetch.attempt = 0;
  if (!fetch.holders.empty()) return true;
  core_.membership().require_rendezvous("the address of a member that can say what is published");
  asked_.erase(fetch.digest);
  return false;
}

template <typename Request, typename Reply>
void RestoreRun::ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<Link>& link, int layout_rank) {
  const auto again = std::make_shared<bool>(false);  // owners: the two callbacks, of which only one may go on
  const auto next = [this, fetch] {
    ++fetch->attempt;
    this->fetch<Request, Reply>(fetch);
  };
  const auto watcher = link->watch(while_running([again, next](const Error& error) {
    if (std::exchange(*again, true)) return;
    if (error.code() == ErrorCode::out_of_resources) throw error;  // nothing will change by itself
    next();
  }));
  asking_.emplace_back(link, watcher);
  link->request(
      fetch->digest, Request{fetch->digest},
      while_running([this, again, next, fetch, layout_rank, watcher, link = link.get()](wire::Message& message) {
        link->unwatch(watcher);
        if (std::exchange(*again, true)) return;
        const auto* reply = std::get_if<Reply>(&message);
        if (reply == nullptr || reply->encoded.empty()) return next();
        if (!wire::same_digest(wire::digest_of(reply->encoded), fetch->digest)) {
          throw Error(ErrorCode::transport_failed,
                      fmt::format("source rank {} sent a description that does not match its digest", layout_rank),
                      std::vector<Rank>{Rank{layout_rank}});
        }
        fetch->keep(reply->encoded);
        asked_.erase(fetch->digest);
        try_to_plan();
      }));
}

bool RestoreRun::fetch_metadata(const std::vector<wire::PublicationRecord>& records) {
  bool complete = true;
  std::map<wire::Digest, std::vector<wire::PublicationRecord>> by_manifest;
  std::map<wire::Digest, std::vector<wire::PublicationRecord>> by_values;
  for (const auto& record : records) {
    by_manifest[record.manifest].push_back(record);
    if (needs_values_) by_values[record.values].push_back(record);
  }
  for (const auto& [digest, holders] : by_manifest) {
    if (core_.metadata().manifests.contains(digest)) continue;
    complete = false;
    if (!asked_.emplace(digest, holders.front().layout_rank).second) continue;
    const auto keep = [this, key = digest](const Bytes& encoded) {
      core_.metadata().manifests.emplace(key, std::make_shared<const Manifest>(wire::decode_manifest(encoded)));
    };
    fetch<wire::ManifestRequest, wire::ManifestReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::manifest, holders, 0, {}, keep}));
  }
  for (const auto& [digest, holders] : by_values) {
    if (core_.metadata().values.contains(digest)) continue;
    complete = false;
    if (!asked_.emplace(digest, holders.front().layout_rank).second) continue;
    const auto keep = [this, key = digest](const Bytes& encoded) {
      core_.metadata().values.emplace(key, std::make_shared<const Metadata::Values>(wire::decode_values(encoded)));
    };
    fetch<wire::ValuesRequest, wire::ValuesReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::values, holders, 0, {}, keep}));
  }
  return complete;
}

void RestoreRun::take_values() {
  planning_->value_lists.clear();
  planning_->values.emplace();
  for (const auto& record : planning_->records) {
    const auto& values = core_.metadata().values.at(record.values);
    planning_->value_lists.push_back(values);
    planning_->values->push_back({Rank{record.layout_rank}, values.get()});
  }
}

void RestoreRun::make_plan(const std::vector<wire::PublicationRecord>& records, bool everybody) {
  const CachedRestore* cached = repetition_.cached();
  if (cached != nullptr && same_sources(cached->planning->records, records)) return plan_again(records);
  repetition_.forget();
  planning_now_ = true;
  planning_ = std::make_shared<Planning>();
  planning_->records = records;
  for (const auto& record : records) planning_->manifests.push_back(core_.metadata().manifests.at(record.manifest));
  if (needs_values_) take_values();
  // Planning is pure and may take a while: not on the loop, which serves readers meanwhile.
  core_.copier().submit(
      [planning = planning_, manifest = manifest_, catalog = catalog_, own_member = core_.member()] {
        try {
          planning->from = side_of(planning->records, planning->manifests);
          // Every rank of the new layout is taken to restore too: readers of replicas then share them out alike.
          JobLayout to{manifest->ranks, {{manifest, {}}}};
          for (int rank = 0; rank < manifest->ranks; ++rank) to.sections[0].ranks.push_back(Rank{rank});
          Planner planner(planning->from, std::move(to),
                          topology_of(planning->records, own_member, catalog->layout_rank(), manifest->ranks));
          planning->plan = planner.plan(catalog->layout_rank());
          planning->resolved = resolve_values(*catalog, planning->from, planning->plan, planning->values);
          if (planning->plan.gaps.empty()) planning->schedule = planner.schedule(planning->plan);
        } catch (...) {
          planning->error = std::current_exception();
        }
      },
      while_running([this, everybody](const std::exception_ptr&) { planned(everybody); }));
}

// The pieces are those of an earlier restore; values may be new ones.
void RestoreRun::plan_again(const std::vector<wire::PublicationRecord>& records) {
  core_.log(LogLevel::debug, "restore of '" + options_.from + "': the plan of an earlier one holds");
  planning_ = std::move(repetition_.cached()->planning);
  planning_->records = records;
  if (needs_values_) {
    take_values();
    planning_->resolved = resolve_values(wanted_, planning_->from, planning_->plan, planning_->values);
  }
  planned(true);
}

void RestoreRun::planned(bool everybody) {
  planning_now_ = false;
  if (planning_->error) std::rethrow_exception(planning_->error);
  if (overtaken_ && !still_published(planning_->records)) return try_to_plan();  // the plan names what is gone
  ResolvedValues& resolved = planning_->resolved;
  last_gaps_ = planning_->plan.gaps;
  last_absent_ = resolved.absent;
  if (resolved.values_unknown) {
    needs_values_ = true;      // what is absent as a tensor may be there as a value
    grace_over_ = !everybody;  // that wait is over
    return try_to_plan();
  }
  if (!last_gaps_.empty()) {
    if (overtaken_) return try_to_plan();  // who could still publish is asked of what is known now, not of this plan
    if (everybody || awaited(planning_->from.ranks).empty()) incomplete();
    return;
  }
  if (resolved.refusal) throw Error(*resolved.refusal);
  values_ = std::move(resolved.values);
  bind();
}

}  // namespace shardwire
