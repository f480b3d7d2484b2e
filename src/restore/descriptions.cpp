// SPDX-License-Identifier: Apache-2.0
#include "restore/descriptions.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace shardwire::restore {

namespace {

constexpr int max_attempts_in_notice = 32;

}  // namespace

void Metadata::trim(const Directory& directory) {
  constexpr std::size_t min_limit = 64;
  if (manifests.size() + values.size() <= limit_) return;
  std::set<wire::Digest> named;
  directory.each_publication([&](const wire::PublicationRecord& record) {
    named.insert(record.manifest);
    named.insert(record.values);
  });
  // Entries shared with own publications and plans cost nothing to keep.
  const auto unnamed = [&](const auto& entry) { return !named.contains(entry.first) && entry.second.use_count() == 1; };
  std::erase_if(manifests, unnamed);
  std::erase_if(values, unnamed);
  limit_ = std::max(min_limit, 2 * (manifests.size() + values.size()));
}

Descriptions::Descriptions(const Context& context, Duration notice, Events events)
    : context_(context), notice_(notice), events_(std::move(events)), callbacks_(events_.failed) {
}

Descriptions::~Descriptions() {
  stop();
}

void Descriptions::stop() {
  callbacks_.restart();
  asked_.clear();
  for (const auto& [link, watcher] : std::exchange(watched_, {})) link->unwatch(watcher);
}

std::vector<int> Descriptions::awaited() const {
  std::set<int> ranks;
  for (const auto& [digest, rank] : asked_) ranks.insert(rank);
  return {ranks.begin(), ranks.end()};
}

template <typename Request, typename Reply>
void Descriptions::ask_one(const std::shared_ptr<Fetch>& fetch) {
  for (;; ++fetch->attempt) {
    if (fetch->attempt >= fetch->holders.size() && !find_more_holders(*fetch)) return;
    const auto turn = static_cast<std::size_t>(context_.member) + fetch->attempt;
    const wire::PublicationRecord& holder = fetch->holders[turn % fetch->holders.size()];
    fetch->tried.emplace(holder.member, holder.epoch);
    asked_[fetch->digest] = holder.layout_rank;
    try {
      ask<Request, Reply>(fetch, context_.link(holder), holder);
      return ask_another_later<Request, Reply>(fetch, holder);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::out_of_resources)
        throw;   // resources of this process: other holders would fail too
      continue;  // this one is unreachable
    }
  }
}

// Finds holders that published during the requests. If there are none, a change in the directory calls the restore
// again.
bool Descriptions::find_more_holders(Fetch& fetch) {
  Records records = events_.holders();
  std::erase_if(records, [&](const wire::PublicationRecord& record) {
    return record.*fetch.field != fetch.digest || fetch.tried.contains({record.member, record.epoch});
  });
  fetch.holders = std::move(records);
  fetch.attempt = 0;
  if (!fetch.holders.empty()) return true;
  context_.membership.require_rendezvous("the address of a member that can describe the publication");
  asked_.erase(fetch.digest);
  const bool may_answer = std::ranges::any_of(fetch.tried, [&](const auto& one) { return silent_.contains(one); });
  if (fetch.refused && events_.refused && !may_answer) events_.refused(*fetch.refused);
  return false;
}

// A process that hangs does not answer, and its connection does not end.
template <typename Request, typename Reply>
void Descriptions::ask_another_later(const std::shared_ptr<Fetch>& fetch, const wire::PublicationRecord& holder) {
  if (!fetch->patience) {
    fetch->patience = std::make_unique<Timer>(context_.clock);
    fetch->next_patience = notice_;
  }
  fetch->next_patience = std::max(fetch->next_patience / 2, notice_ / max_attempts_in_notice);
  const auto asked = std::pair(holder.member, holder.epoch);
  fetch->patience->start(fetch->next_patience, callbacks_.wrap([this, asked, weak = std::weak_ptr(fetch)] {
    const auto slow = weak.lock();
    if (!slow || slow->over) return;
    silent_.insert(asked);
    if (slow->attempt + 1 >= slow->holders.size()) return;
    ++slow->attempt;
    ask_one<Request, Reply>(slow);
  }));
}

template <typename Request, typename Reply>
void Descriptions::ask(const std::shared_ptr<Fetch>& fetch, const std::shared_ptr<SourceLink>& link,
                       const wire::PublicationRecord& holder) {
  const int layout_rank = holder.layout_rank;
  const auto asked = std::pair(holder.member, holder.epoch);
  const auto over = std::make_shared<bool>(false);  // owners: the two callbacks, of which only one may go on
  const auto next = [this, fetch] {
    if (fetch->over) return;
    ++fetch->attempt;
    ask_one<Request, Reply>(fetch);
  };
  const auto watcher = link->watch(callbacks_.wrap([over, next, fetch](const Error& error) {
    if (std::exchange(*over, true)) return;
    if (error.code() == ErrorCode::out_of_resources) throw error;  // would not change by itself
    if (error.code() == ErrorCode::unsupported) fetch->refused = error;
    next();
  }));
  watched_.emplace_back(link, watcher);
  link->request(
      fetch->digest, Request{fetch->digest},
      callbacks_.wrap(
          [this, over, next, fetch, layout_rank, asked, watcher, link = link.get()](wire::Message& message) {
            link->unwatch(watcher);
            silent_.erase(asked);
            if (std::exchange(*over, true) || fetch->over) return;
            const auto* reply = std::get_if<Reply>(&message);
            if (reply == nullptr || reply->encoded.empty()) return next();
            if (!wire::same_digest(wire::digest_of(reply->encoded), fetch->digest)) {
              throw Error(ErrorCode::transport_failed,
                          fmt::format("source rank {} sent a description that does not match its digest", layout_rank),
                          std::vector<Rank>{Rank{layout_rank}});
            }
            fetch->over = true;
            fetch->patience->stop();
            fetch->keep(reply->encoded);
            asked_.erase(fetch->digest);
            events_.described();
          }));
  if (events_.asked) events_.asked(*link);
}

bool Descriptions::knows(const Records& records, const Records& with_values) const {
  const Metadata& known = context_.metadata;
  return std::ranges::all_of(records, [&](const auto& record) { return known.manifests.contains(record.manifest); }) &&
         std::ranges::all_of(with_values, [&](const auto& record) { return known.values.contains(record.values); });
}

bool Descriptions::fetch(const Records& records, const Records& with_values) {
  bool complete = true;
  std::map<wire::Digest, Records> by_manifest;
  std::map<wire::Digest, Records> by_values;
  for (const auto& record : records) by_manifest[record.manifest].push_back(record);
  for (const auto& record : with_values) by_values[record.values].push_back(record);
  Metadata& known = context_.metadata;
  for (const auto& [digest, holders] : by_manifest) {
    if (known.manifests.contains(digest)) continue;
    complete = false;
    if (!asked_.emplace(digest, holders.front().layout_rank).second) continue;
    const auto keep = [&known, key = digest](const Bytes& encoded) {
      known.manifests.emplace(key, std::make_shared<const Manifest>(wire::decode_manifest(encoded)));
    };
    ask_one<wire::ManifestRequest, wire::ManifestReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::manifest, holders, 0, {}, keep}));
  }
  for (const auto& [digest, holders] : by_values) {
    if (known.values.contains(digest)) continue;
    complete = false;
    if (!asked_.emplace(digest, holders.front().layout_rank).second) continue;
    const auto keep = [&known, key = digest](const Bytes& encoded) {
      known.values.emplace(key, std::make_shared<const Metadata::Values>(wire::decode_values(encoded)));
    };
    ask_one<wire::ValuesRequest, wire::ValuesReply>(
        std::make_shared<Fetch>(Fetch{digest, &wire::PublicationRecord::values, holders, 0, {}, keep}));
  }
  return complete;
}

}  // namespace shardwire::restore
