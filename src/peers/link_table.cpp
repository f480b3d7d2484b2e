// SPDX-License-Identifier: Apache-2.0
#include "peers/link_table.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace shardwire {

namespace {

// Keeps mappings for a source that soon publishes its next step from the same arenas.
constexpr std::chrono::seconds idle_grace(2);
constexpr ByteCount max_idle_bytes = 256u << 20;

}  // namespace

LinkTable::LinkTable(Loop& loop, const Fabrics& fabrics, const FabricTable& table, Membership& membership,
                     const Identity& identity, Defer defer)
    : loop_(loop),
      fabrics_(fabrics),
      table_(table),
      membership_(membership),
      identity_(identity),
      defer_(std::move(defer)) {
}

std::shared_ptr<Link> LinkTable::link(const wire::PublicationRecord& record) {
  auto& link = links_[{record.member, record.epoch}];
  if (link && !link->broken()) return link;
  const Directory& directory = membership_.directory();
  if (directory.presence(record.member) != wire::Presence::there) {
    throw Error(ErrorCode::peer_lost, fmt::format("member {} is not in the session any more", record.member),
                std::vector<Rank>{Rank{record.member}});
  }
  const wire::MemberRecord* address = directory.address(record.member, record.epoch);
  if (address == nullptr) membership_.require_rendezvous(fmt::format("the address of member {}", record.member));
  auto fresh = std::make_shared<Link>(fabrics_, table_, record.member);
  if (address != nullptr) {
    fresh->connect(loop_, *address, identity_);  // throws: nothing is stored, the next call tries again
  } else {
    look_up(record, fresh);
  }
  // Deferred to a later loop iteration, because a broken link may be on the call stack.
  defer_([old = std::exchange(link, fresh)] {});
  return fresh;
}

void LinkTable::look_up(const wire::PublicationRecord& record, const std::shared_ptr<Link>& link) {
  const auto [waiting, is_new] = unresolved_.try_emplace(record.member);
  waiting->second.emplace_back(record.epoch, link);
  if (is_new) request_address(record.member);
}

void LinkTable::look_ahead(std::span<const wire::PublicationRecord> records) {
  if (membership_.lost() != nullptr) return;
  for (const wire::PublicationRecord& record : records) {
    if (membership_.directory().address(record.member, record.epoch) != nullptr) continue;
    if (unresolved_.try_emplace(record.member).second) request_address(record.member);
  }
}

// One message for all lookups of a loop iteration.
void LinkTable::request_address(int member) {
  if (to_look_up_.empty()) defer_([this] { send_lookup(); });
  to_look_up_.push_back(member);
}

void LinkTable::send_lookup() {
  wire::Lookup lookup{std::exchange(to_look_up_, {})};
  std::sort(lookup.members.begin(), lookup.members.end());
  membership_.send(lookup);
}

void LinkTable::receive(const wire::Addresses& addresses) {
  for (const auto& entry : addresses.members) connect_waiting(entry.member.rank, nullptr);
  const Error absent(ErrorCode::peer_lost, "it is not in the session any more");
  for (const std::int32_t member : addresses.absent) connect_waiting(member, &absent);
}

void LinkTable::end_waiting(const Error& reason) {
  while (!unresolved_.empty()) connect_waiting(unresolved_.begin()->first, &reason);
}

void LinkTable::connect_waiting(int member, const Error* absent) {
  const auto waiting = unresolved_.extract(member);
  if (waiting.empty()) return;
  for (const auto& [epoch, weak] : waiting.mapped()) {
    const auto link = weak.lock();
    if (!link || link->broken()) continue;
    const wire::MemberRecord* address = membership_.directory().address(member, epoch);
    try {
      if (absent != nullptr) {
        link->fail(*absent);
      } else if (address == nullptr) {
        link->fail(Error(ErrorCode::peer_lost, "another process has taken its number"));
      } else {
        link->connect(loop_, *address, identity_);
      }
    } catch (const Error& error) {
      link->fail(error);
    }
  }
}

std::pair<std::vector<LinkTable::Gone>, std::optional<Clock::Time>> LinkTable::sweep(Clock::Time now) {
  std::vector<Gone> gone;
  std::erase_if(links_, [&](const auto& entry) {
    const auto& link = entry.second;
    if (link && !link->broken()) return false;
    gone.push_back({link.get(), {}});
    defer_([old = link] {});  // it may be on the call stack
    return true;
  });
  struct Candidate {
    Clock::Time since;
    std::shared_ptr<Link> link;
    Link::Idle idle;
  };
  std::vector<Candidate> candidates;
  std::map<std::pair<const Link*, std::string>, Clock::Time> still_idle;
  for (const auto& [key, link] : links_) {
    const auto live = [&, member = key.first](const std::string& name, std::uint64_t generation) {
      const auto record = membership_.directory().publication(name, member);
      return record && record->generation == generation;
    };
    for (Link::Idle& idle : link->idle(live)) {
      const std::pair<const Link*, std::string> one(link.get(), idle.publication);
      const auto known = idle_since_.find(one);
      const Clock::Time since = known == idle_since_.end() ? now : known->second;
      still_idle.emplace(one, since);
      candidates.push_back({since, link, std::move(idle)});
    }
  }
  idle_since_ = std::move(still_idle);
  std::ranges::sort(candidates, {}, &Candidate::since);
  ByteCount bytes = 0;
  for (const Candidate& one : candidates) bytes += one.idle.bytes;
  std::optional<Clock::Time> due;
  for (Candidate& one : candidates) {
    if (now - one.since < idle_grace && bytes <= max_idle_bytes) {
      if (!due) due = one.since + idle_grace;
      continue;
    }
    bytes -= one.idle.bytes;
    one.link->unbind(one.idle.publication);
    idle_since_.erase({one.link.get(), one.idle.publication});
    gone.push_back({one.link.get(), std::move(one.idle.publication)});
  }
  return {std::move(gone), due};
}

void LinkTable::leave() {
  for (const auto& [key, link] : links_) {
    if (link && !link->broken()) link->leave();
  }
}

}  // namespace shardwire
