// SPDX-License-Identifier: Apache-2.0
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "session/restore_run.hpp"
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
    side.sections[entry->second].ranks.push_back(Rank{records[i].place});
    side.ranks = std::max(side.ranks, manifests[i]->ranks);
  }
  for (Section& section : side.sections) std::sort(section.ranks.begin(), section.ranks.end());
  return side;
}

// Which place of the old layout this process has is known; of the others it is supposed that they kept their number
// where this one did, and that nothing is beside them where not.
Topology topology_of(const std::vector<wire::PublicationRecord>& records, int member, Rank place, int places) {
  std::int32_t own = -1;
  int source_ranks = 0;
  for (const auto& record : records) {
    if (record.member == member) own = record.place;
    source_ranks = std::max(source_ranks, record.place + 1);
  }
  Topology topology;
  for (std::int32_t other = 0; other < places; ++other) {
    topology.beside.push_back(own == to_int(place) && other < source_ranks ? other : -1);
  }
  topology.beside[static_cast<std::size_t>(to_int(place))] = own;
  return topology;
}

}  // namespace

std::vector<wire::PublicationRecord> RestoreRun::sources() const {
  auto records = core_.directory().publications(options_.from);
  if (options_.step) std::erase_if(records, [&](const auto& record) { return record.step != *options_.step; });
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.place < b.place; });
  return records;
}

bool RestoreRun::still_published(const std::vector<wire::PublicationRecord>& records) const {
  const auto now = sources();
  return std::all_of(records.begin(), records.end(), [&](const wire::PublicationRecord& record) {
    const auto found = std::lower_bound(now.begin(), now.end(), record.place,
                                        [](const auto& one, std::int32_t place) { return one.place < place; });
    return found != now.end() && *found == record;
  });
}

// Called whenever something became known. Plans at once when every place of the old layout has published; else once
// nothing has changed for a while, since a cover may be complete without the missing ones.
void RestoreRun::consider() {
  if (planning_now_) {
    overtaken_ = true;
    return;
  }
  overtaken_ = false;
  if (manifest_->tensors.empty() && wanted_.values().empty()) return commit();
  const auto records = sources();
  if (records.empty() || !learn(records)) return;

  int ranks = 0;
  for (const auto& record : records) {
    const int theirs = core_.manifests.at(record.manifest)->ranks;
    if (ranks != 0 && theirs != ranks) {
      throw Error(ErrorCode::layout_mismatch,
                  fmt::format("source rank {} speaks of {} ranks, source rank {} of {}", records.front().place, ranks,
                              record.place, theirs),
                  std::vector<Rank>{Rank{records.front().place}, Rank{record.place}});
    }
    ranks = theirs;
  }
  const bool one_step = std::all_of(records.begin(), records.end(),
                                    [&](const auto& record) { return record.step == records.front().step; });
  for (std::size_t i = 1; i < records.size(); ++i) {
    if (records[i].place != records[i - 1].place) continue;
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("members {} and {} both publish place {} of '{}'", records[i - 1].member, records[i].member,
                            records[i].place, options_.from),
                std::vector<Rank>{Rank{records[i].place}});
  }
  if (records.size() == static_cast<std::size_t>(ranks) && one_step) return make_plan(records, true);
  if (!settled_) {
    settle_.start(options_.settle, while_running([this] {
                    settled_ = true;
                    consider();
                  }));
    return;
  }
  settled_ = false;  // a later change starts the wait anew
  if (!one_step) {
    std::map<std::int64_t, std::vector<int>> steps;
    for (const auto& record : records) steps[record.step].push_back(record.place);
    std::vector<std::string> text;
    for (const auto& [step, ranks_at] : steps)
      text.push_back(fmt::format("step {}: rank {}", step, support::list_of(ranks_at)));
    throw Error(ErrorCode::layout_mismatch,
                fmt::format("the sources of '{}' are not at one step: {}", options_.from, fmt::join(text, "; ")));
  }
  make_plan(records, false);
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
    const auto turn = static_cast<std::size_t>(core_.bootstrap().rank) + fetch->attempt;
    const wire::PublicationRecord& holder = fetch->holders[turn % fetch->holders.size()];
    fetch->tried.emplace(holder.member, holder.turn);
    try {
      return ask<Request, Reply>(fetch, core_.link(holder), holder.place);
    } catch (const Error&) {
      continue;  // this one cannot be reached
    }
  }
}

// Holders that published while the others were asked; where there are none, a change in the directory will bring us back.
bool RestoreRun::find_more_holders(Fetch& fetch) {
  auto records = sources();
  std::erase_if(records, [&](const wire::PublicationRecord& record) {
    return record.*fetch.field != fetch.digest || fetch.tried.contains({record.member, record.turn});
  });
  fetch.holders = std::move(records);
  fetch.attempt = 0;
  if (!fetch.holders.empty()) return true;
  core_.require_rendezvous("the address of a member that can say what is published");
  asked_.erase(fetch.digest);
  return false;
}

template <typename Request, typename Reply>
void RestoreRun::ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<Link>& link, int place) {
  const auto again = std::make_shared<bool>(false);  // owners: the two callbacks, of which only one may go on
  const auto next = [this, fetch] {
    ++fetch->attempt;
    this->fetch<Request, Reply>(fetch);
  };
  const auto watcher = link->watch(while_running([again, next](const Error&) {
    if (!std::exchange(*again, true)) next();
  }));
  link->request(fetch->digest, Request{fetch->digest},
                while_running([this, again, next, fetch, place, watcher, link = link.get()](wire::Message& message) {
                  link->unwatch(watcher);
                  if (std::exchange(*again, true)) return;
                  const auto* reply = std::get_if<Reply>(&message);
                  if (reply == nullptr || reply->encoded.empty()) return next();
                  if (!wire::same_digest(wire::digest_of(reply->encoded), fetch->digest)) {
                    throw Error(ErrorCode::transport_failed,
                                fmt::format("source rank {} sent a description that does not match its digest", place),
                                std::vector<Rank>{Rank{place}});
                  }
                  fetch->keep(reply->encoded);
                  asked_.erase(fetch->digest);
                  consider();
                }));
}

bool RestoreRun::learn(const std::vector<wire::PublicationRecord>& records) {
  bool complete = true;
  std::map<wire::Digest, std::vector<wire::PublicationRecord>> by_manifest;
  std::map<wire::Digest, std::vector<wire::PublicationRecord>> by_values;
  for (const auto& record : records) {
    by_manifest[record.manifest].push_back(record);
    if (needs_values_) by_values[record.values].push_back(record);
  }
  for (const auto& [digest, holders] : by_manifest) {
    if (core_.manifests.contains(digest)) continue;
    complete = false;
    if (!asked_.insert(digest).second) continue;
    const auto keep = [this, key = digest](const Bytes& encoded) {
      core_.manifests.emplace(key, std::make_shared<const Manifest>(wire::decode_manifest(encoded)));
    };
    fetch<wire::ManifestRequest, wire::ManifestReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::manifest, holders, 0, {}, keep}));
  }
  for (const auto& [digest, holders] : by_values) {
    if (core_.values.contains(digest)) continue;
    complete = false;
    if (!asked_.insert(digest).second) continue;
    const auto keep = [this, key = digest](const Bytes& encoded) {
      core_.values.emplace(key, wire::decode_values(encoded));
    };
    fetch<wire::ValuesRequest, wire::ValuesReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::values, holders, 0, {}, keep}));
  }
  return complete;
}

void RestoreRun::make_plan(const std::vector<wire::PublicationRecord>& records, bool everybody) {
  if (kept_ && same_sources(kept_->planning->records, records)) return plan_again(records);
  kept_.reset();
  planning_now_ = true;
  planning_ = std::make_shared<Planning>();
  planning_->records = records;
  for (const auto& record : records) planning_->manifests.push_back(core_.manifests.at(record.manifest));
  if (needs_values_) {
    planning_->values.emplace();
    for (const auto& record : records) {
      planning_->values->push_back({Rank{record.place}, &core_.values.at(record.values)});
    }
  }
  // Planning is pure and may take a while: not on the loop, which serves readers meanwhile.
  core_.copier().submit(
      [planning = planning_, manifest = manifest_, catalog = catalog_, own_member = core_.bootstrap().rank] {
        try {
          planning->from = side_of(planning->records, planning->manifests);
          // Every place of the new layout is taken to restore too: readers of replicas then share them out alike.
          JobLayout to{manifest->ranks, {{manifest, {}}}};
          for (int rank = 0; rank < manifest->ranks; ++rank) to.sections[0].ranks.push_back(Rank{rank});
          Planner planner(planning->from, std::move(to),
                          topology_of(planning->records, own_member, catalog->place(), manifest->ranks));
          planning->plan = planner.plan(catalog->place());
          planning->findings = find_values(*catalog, planning->from, planning->plan, planning->values);
          if (planning->plan.gaps.empty()) planning->schedule = planner.schedule(planning->plan);
        } catch (...) {
          planning->error = std::current_exception();
        }
      },
      while_running([this, everybody](const std::exception_ptr&) { planned(everybody); }));
}

// The pieces are those of an earlier restore; values may be new ones.
void RestoreRun::plan_again(const std::vector<wire::PublicationRecord>& records) {
  planning_ = std::move(kept_->planning);
  planning_->records = records;
  if (needs_values_) {
    planning_->values.emplace();
    for (const auto& record : records) {
      planning_->values->push_back({Rank{record.place}, &core_.values.at(record.values)});
    }
    planning_->findings = find_values(wanted_, planning_->from, planning_->plan, planning_->values);
  }
  planned(true);
}

void RestoreRun::planned(bool everybody) {
  planning_now_ = false;
  if (planning_->error) std::rethrow_exception(planning_->error);
  if (overtaken_ && !still_published(planning_->records)) return consider();  // the plan names what is gone
  Findings& findings = planning_->findings;
  last_gaps_ = planning_->plan.gaps;
  last_absent_ = findings.absent;
  if (findings.values_unknown) {
    needs_values_ = true;   // what is absent as a tensor may be there as a value
    settled_ = !everybody;  // that wait is over
    return consider();
  }
  if (!last_gaps_.empty()) {
    // Final when nobody is left who could still publish the missing places.
    const auto absent = static_cast<std::size_t>(planning_->from.ranks) - planning_->records.size();
    if (everybody || core_.directory().lost_members().size() >= absent) require_complete(last_gaps_, last_absent_);
    if (overtaken_) consider();
    return;
  }
  if (findings.refusal) throw Error(*findings.refusal);
  values_ = std::move(findings.values);
  bind();
}

}  // namespace shardwire
