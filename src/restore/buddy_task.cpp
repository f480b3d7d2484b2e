// SPDX-License-Identifier: Apache-2.0
#include "restore/buddy_task.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "plan/buddies.hpp"
#include "support/list_of.hpp"
#include "support/ranks_of.hpp"

namespace shardwire::restore {

CopiesMade::CopiesMade(const Context& context, Request request, Done done)
    : Question(context, name_for(request.name), request.timeout), request_(std::move(request)), done_(std::move(done)) {
}

// Names of publications have a limited length.
std::string CopiesMade::name_for(const std::string& name) {
  return "copied: " + wire::to_hex(wire::digest_of(std::as_bytes(std::span(name))));
}

void CopiesMade::start() {
  request_.members.empty() ? end(nullptr) : Question::start();
}

void CopiesMade::timed_out() {
  const std::vector<int> silent = awaited();
  end(std::make_exception_ptr(Error(ErrorCode::timed_out,
                                    fmt::format("members {} are not done with their copies", support::list_of(silent)),
                                    support::ranks_of(silent))));
}

std::vector<int> CopiesMade::awaited() const {
  std::vector<int> members;
  for (const int member : request_.members) {
    if (context_.directory.presence(member) != wire::Presence::there) continue;
    const auto said = context_.directory.publication(roster_.name(), member);
    if (!said || said->step < request_.step) members.push_back(member);
  }
  return members;
}

void CopiesMade::look() {
  if (awaited().empty()) return end(nullptr);
  context_.membership.require_rendezvous("what other members have copied");
}

void CopiesMade::end(const std::exception_ptr& error) {
  if (!done_) return;
  timer_.stop();
  context_.finished(*this);
  std::exchange(done_, nullptr)(error);
}

BuddyTask::BuddyTask(const Context& context, Request request, Done done)
    : Question(context, request.name, request.timeout),
      request_(std::move(request)),
      done_(std::move(done)),
      said_(context, CopiesMade::name_for(request_.name)),
      descriptions_(context, RestoreOptions().notice,
                    {.holders = [this] { return published(); },
                     .described = [this] { look(); },
                     .failed = [this](const std::exception_ptr& error) { end({}, error); }}),
      patience_(context.clock) {
}

void BuddyTask::start() {
  patience_.start(request_.patience, [this] {
    patient_ = false;
    directory_changed();
  });
  Question::start();
}

void BuddyTask::timed_out() {
  end({}, std::make_exception_ptr(
              Error(ErrorCode::timed_out, "its publishers did not tell where and what they are within the timeout")));
}

BuddyTask::Records BuddyTask::published() const {
  return one_of_each_rank(roster_.publications());
}

BuddyTask::Records BuddyTask::one_of_each_rank(Records records) const {
  std::erase_if(records, [&](const wire::PublicationRecord& one) {
    return one.origin != 0 || one.member >= context_.directory.members() || one.layout_rank >= request_.ranks;
  });
  std::ranges::stable_sort(records, {}, &wire::PublicationRecord::layout_rank);
  const auto same_rank = [](const auto& a, const auto& b) { return a.layout_rank == b.layout_rank; };
  records.erase(std::unique(records.begin(), records.end(), same_rank), records.end());
  return records;
}

// A member that is done may have retired the step. Who has not looked yet would wait for it in vain.
BuddyTask::Records BuddyTask::with_those_done(Records all) const {
  for (wire::PublicationRecord& done : one_of_each_rank(said_.publications())) {
    if (done.step < request_.step) continue;
    const auto known = std::ranges::find(all, done.layout_rank, &wire::PublicationRecord::layout_rank);
    if (known == all.end()) {
      all.push_back(std::move(done));
    } else if (known->step < request_.step) {
      *known = std::move(done);
    }
  }
  return one_of_each_rank(std::move(all));
}

void BuddyTask::look() {
  said_.follow();
  if (!roster_.is_known() || !said_.is_known()) return;
  const Records there = published();
  const Records all = with_those_done(there);
  const bool behind = std::ranges::any_of(all, [&](const auto& one) { return one.step < request_.step; });
  const bool absent = all.size() < static_cast<std::size_t>(request_.ranks);
  const auto is_member = [&](const auto& one) { return one.first < context_.directory.members(); };
  const bool may_come =
      context_.membership.lost() == nullptr && std::ranges::none_of(context_.directory.departed(), is_member);
  if (patient_ && may_come && (behind || absent)) return;
  context_.look_ahead(all);
  std::map<std::string, std::int32_t> numbers;
  std::vector<std::int32_t> domains;
  for (const wire::PublicationRecord& one : all) {
    const wire::MemberRecord* address = context_.directory.address(one.member, one.epoch);
    if (address == nullptr) return;
    const std::string& domain = address->domain.empty() ? address->host : address->domain;
    domains.push_back(numbers.try_emplace(domain, static_cast<std::int32_t>(numbers.size())).first->second);
  }
  Found found;
  const Buddies buddies = buddies_of(domains, request_.copies);
  found.domains = buddies.domains;
  for (const wire::PublicationRecord& one : all) found.publishers.push_back(one.member);
  Records copied;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].layout_rank == request_.layout_rank) {
      for (const Rank holder : buddies.of[i]) {
        const wire::PublicationRecord& by = all[static_cast<std::size_t>(to_int(holder))];
        if (by.step >= request_.step) found.holders.push_back(by.member);  // else it has stopped
      }
    }
    const bool mine = std::ranges::any_of(buddies.of[i], [&](Rank holder) {
      return all[static_cast<std::size_t>(to_int(holder))].layout_rank == request_.layout_rank;
    });
    if (!mine) continue;
    if (all[i].step != request_.step || std::ranges::find(there, all[i]) == there.end()) {
      found.missed.push_back(all[i].layout_rank);
    } else {
      copied.push_back(all[i]);
    }
  }
  for (int rank = 0; rank < request_.ranks; ++rank) {
    if (std::ranges::find(all, rank, &wire::PublicationRecord::layout_rank) == all.end()) found.missed.push_back(rank);
  }
  if (!descriptions_.fetch(copied, copied)) return;
  const Metadata& known = context_.metadata;
  for (const wire::PublicationRecord& one : copied) {
    found.copies.push_back({one, known.manifests.at(one.manifest), known.values.at(one.values)});
  }
  end(std::move(found), nullptr);
}

void BuddyTask::end(Found found, const std::exception_ptr& error) {
  if (!done_) return;
  patience_.stop();
  timer_.stop();
  descriptions_.stop();
  context_.finished(*this);
  std::exchange(done_, nullptr)(std::move(found), error);
}

}  // namespace shardwire::restore
