// SPDX-License-Identifier: Apache-2.0
#include "control/rendezvous.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "wire/limits.hpp"

namespace shardwire {

namespace {

constexpr std::chrono::microseconds time_per_message(30);
constexpr std::chrono::milliseconds longest_wait(500);
constexpr std::chrono::seconds stretch_unit(16);  // each such period of continuous publications adds one more delay
constexpr std::chrono::seconds series_gap(30);    // such a time without rosters starts a new series
// A gather's result is one message; this much of it is for data other than values.
constexpr std::size_t gather_margin_bytes = 1u << 20;

// The addresses of up to so many publishers go before their roster. A restore would ask for all of them (Discovery).
constexpr std::size_t max_introduced = 64;

// Limits per member.
constexpr std::size_t max_names = wire::max_names_of_member;
constexpr std::size_t max_unfinished_gathers = 256;
constexpr std::size_t max_unfinished_gather_bytes = wire::max_message_bytes;

std::size_t size_with(const Bytes& value) {
  return value.size() + 2 * sizeof(std::uint64_t);  // in the message, with its position
}

[[noreturn]] void refuse_more(std::int32_t rank, const std::string& what) {
  throw Error(ErrorCode::out_of_resources, fmt::format("member {} {}", rank, what));
}

// The publishers in a whole roster; none if there are many.
std::vector<std::int32_t> introduced(const wire::Roster& whole) {
  std::vector<std::int32_t> members;
  for (const wire::MemberRun& run : whole.runs) {
    if (members.size() + static_cast<std::size_t>(run.count) > max_introduced) return {};
    for (std::int32_t i = 0; i < run.count; ++i) members.push_back(run.first + i);
  }
  return members;
}

std::chrono::milliseconds wait_after(std::size_t messages) {
  // Delays below the timer's resolution become zero: small jobs receive every change at once.
  const auto wait = std::chrono::floor<std::chrono::milliseconds>(time_per_message * messages);
  return std::min(wait, longest_wait);
}

}  // namespace

bool Rendezvous::serves(const wire::Message& message) {
  return std::visit(
      []<typename Type>(const Type&) {
        return std::is_same_v<Type, wire::Join> || std::is_same_v<Type, wire::Publish> ||
               std::is_same_v<Type, wire::Watch> || std::is_same_v<Type, wire::Unwatch> ||
               std::is_same_v<Type, wire::Lookup> || std::is_same_v<Type, wire::Gather> ||
               std::is_same_v<Type, wire::GatherQuit> || std::is_same_v<Type, wire::ExchangeGivenUp> ||
               std::is_same_v<Type, wire::AttemptRaised>;
      },
      message);
}

bool Rendezvous::is_notice(const wire::Message& message) {
  const auto* roster = std::get_if<wire::Roster>(&message);
  return (roster != nullptr && !roster->whole) || std::holds_alternative<wire::MembershipChanges>(message) ||
         std::holds_alternative<wire::ExchangeGivenUp>(message) || std::holds_alternative<wire::AttemptRaised>(message);
}

void Rendezvous::take(ClientId from, const wire::Hello& peer, const wire::Message& message, Clock::Time now) {
  std::visit(
      [&]<typename Type>(const Type& value) {
        if constexpr (std::is_same_v<Type, wire::Join>) join(from, peer, value.member, now);
        if constexpr (std::is_same_v<Type, wire::Publish>) publish(from, value);
        if constexpr (std::is_same_v<Type, wire::Watch>) watch(from, value.publication);
        if constexpr (std::is_same_v<Type, wire::Unwatch>) unwatch(from, value.publication);
        if constexpr (std::is_same_v<Type, wire::Lookup>) look_up(from, value.members);
        if constexpr (std::is_same_v<Type, wire::Gather>) gather(from, value);
        if constexpr (std::is_same_v<Type, wire::GatherQuit>) quit_gather(from, value.name);
        if constexpr (std::is_same_v<Type, wire::ExchangeGivenUp>) give_up(from, value);
        if constexpr (std::is_same_v<Type, wire::AttemptRaised>) raise_attempt(from, value.attempt);
      },
      message);
}

Rendezvous::Client& Rendezvous::member_of(ClientId from) {
  const auto found = clients_.find(from);
  if (found == clients_.end()) throw Error(ErrorCode::invalid_argument, "a member must join first");
  return found->second;
}

// --- membership ---

std::int32_t Rendezvous::free_guest() const {
  for (std::int32_t rank = members_; rank < members_ + wire::max_guests; ++rank) {
    if (!holder(rank)) return rank;
  }
  throw Error(ErrorCode::out_of_resources,
              fmt::format("the job has {} guests, the most there may be", wire::max_guests));
}

std::int32_t Rendezvous::rank_of(ClientId from, const char* what) {
  const std::int32_t rank = member_of(from).rank;
  if (!is_guest(rank)) return rank;
  throw Error(ErrorCode::invalid_argument, fmt::format("member {} is a guest, and takes no part in {}", rank, what));
}

void Rendezvous::join(ClientId from, const wire::Hello& peer, const wire::MemberRecord& asked, Clock::Time now) {
  if (asked.rank != peer.rank || asked.incarnation != peer.incarnation || asked.rank >= members_) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} of {} may not join as member {}", peer.rank, members_, asked.rank));
  }
  wire::MemberRecord member = asked;
  if (asked.rank == wire::no_member) member.rank = free_guest();
  const auto taken = seats_.find(member.rank);
  if (clients_.contains(from) || (taken != seats_.end() && taken->second.presence == wire::Presence::there)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a member {} has joined already and is alive", member.rank));
  }
  if (moved_.contains(member.rank)) send_membership_changes();  // all have to learn that the one before it is gone
  Seat& seat = seats_[member.rank];
  if (seat.presence != wire::Presence::there) moved_.insert(member.rank);
  departed_.erase(member.rank);
  for (const std::string& name : seat.gathers) {  // values of the process that was here before
    const auto found = gathers_.find(name);
    if (found == gathers_.end()) continue;
    drop_value(found->second, member.rank);
    if (found->second.values.empty()) gathers_.erase(found);
  }
  seat = {seat.epoch + 1, wire::Presence::there, from, member};
  clients_[from].rank = member.rank;
  if (!began_) began_ = now;
  const auto age = std::chrono::nanoseconds(now - *began_);
  send_({&from, 1},
        wire::Joined{seat.epoch, member.rank, members_, session_, attempt_, static_cast<std::uint64_t>(age.count())});
  if (const auto gone = membership_changes(); !gone.runs.empty()) send_({&from, 1}, gone);
}

std::optional<Rendezvous::ClientId> Rendezvous::holder(std::int32_t rank) const {
  const auto found = seats_.find(rank);
  if (found == seats_.end() || found->second.presence != wire::Presence::there) return std::nullopt;
  return found->second.client;
}

void Rendezvous::closed(ClientId client, bool orderly) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;
  const Client gone = std::move(found->second);
  clients_.erase(found);
  for (const std::string& name : gone.watched) std::erase(names_.at(name).watchers, client);
  // An orderly leave sets left: its publications are gone too, but it is no fault.
  seats_.at(gone.rank).presence = orderly ? wire::Presence::left : wire::Presence::lost;
  moved_.insert(gone.rank);
  departed_.insert(gone.rank);
  if (!orderly && !is_guest(gone.rank)) lost_since_meeting_.insert(gone.rank);
  for (auto& [name, roster] : names_) {
    if (roster.sent.has(gone.rank) || roster.changes.contains(gone.rank)) set(name, roster, gone.rank, std::nullopt);
  }
  std::erase_if(names_, [](const auto& name) { return name.second.idle(); });
  std::vector<std::string> names;
  for (auto& [name, gathering] : gathers_) {
    std::erase(gathering.waiting, client);
    if (!orderly || gathering.while_waiting.contains(gone.rank)) drop_value(gathering, gone.rank);
    names.push_back(name);
  }
  for (const std::string& name : names) check_gather(name);
}

void Rendezvous::look_up(ClientId from, const std::vector<std::int32_t>& members) {
  member_of(from);
  wire::Addresses answer;
  for (const std::int32_t member : members) {
    const auto found = seats_.find(member);
    if (found == seats_.end() || found->second.presence != wire::Presence::there) {
      answer.absent.push_back(member);
    } else {
      answer.members.push_back({found->second.epoch, found->second.member});
    }
  }
  send_({&from, 1}, answer);
}

wire::MembershipChanges Rendezvous::membership_changes() const {
  RunBuilder runs;
  for (const std::int32_t rank : departed_) {
    runs.add(rank, rank, static_cast<std::uint32_t>(seats_.at(rank).presence));
  }
  return {runs.take()};
}

// --- publications ---

void Rendezvous::publish(ClientId from, const wire::Publish& publish) {
  Client& client = member_of(from);
  const std::int32_t rank = client.rank;
  if (publish.record.member != rank) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("member {} may not publish for member {}", rank, publish.record.member));
  }
  if (!publish.record.live) {
    client.published.erase(publish.publication);
  } else if (client.published.insert(publish.publication).second && client.published.size() > max_names) {
    client.published.erase(publish.publication);
    refuse_more(rank, fmt::format("publishes under {} names already, the most there may be", max_names));
  }
  wire::PublicationRecord record = publish.record;
  record.epoch = seats_.at(rank).epoch;
  Name& roster = names_[publish.publication];
  set(publish.publication, roster, rank, record.live ? std::optional(record) : std::nullopt);
  if (roster.idle()) names_.erase(publish.publication);
}

void Rendezvous::set(const std::string& name, Name& roster, std::int32_t rank,
                     const std::optional<wire::PublicationRecord>& record) {
  if (!roster.watchers.empty()) {
    roster.changes[rank] = record;
    changed_.insert(name);
    return;
  }
  // Without watchers publications wait for the first one, and are then grouped once.
  roster.changes.erase(rank);
  if (record) {
    roster.changes[rank] = record;
  } else if (roster.sent.has(rank)) {
    roster.sent.apply(roster.sent.message_for({{rank, std::nullopt}}), members_);
  }
}

void Rendezvous::watch(ClientId from, const std::string& name) {
  Client& client = member_of(from);
  if (client.watched.contains(name)) return;
  if (client.watched.size() >= max_names) {
    refuse_more(client.rank, fmt::format("watches {} names already, the most there may be", max_names));
  }
  client.watched.insert(name);
  Name& roster = names_[name];
  if (roster.watchers.empty()) {
    roster.sent.apply(roster.sent.message_for(roster.changes), members_);
    roster.changes.clear();
    changed_.erase(name);
  }
  roster.watchers.push_back(from);
  wire::Roster whole = roster.sent.whole();
  whole.publication = name;
  // Before the roster: with it, the watcher looks for the addresses that it lacks.
  if (const auto publishers = introduced(whole); !publishers.empty()) look_up(from, publishers);
  send_({&from, 1}, whole);
}

void Rendezvous::unwatch(ClientId from, const std::string& name) {
  if (member_of(from).watched.erase(name) == 0) return;
  const auto found = names_.find(name);
  std::erase(found->second.watchers, from);
  if (found->second.idle()) names_.erase(found);
}

std::optional<Clock::Time> Rendezvous::flush(Clock::Time now) {
  if (!moved_.empty() && now >= next_membership_changes_)
    next_membership_changes_ = now + wait_after(send_membership_changes());
  if (!changed_.empty() && now >= next_rosters_) {
    const auto wait = wait_after(send_rosters());
    if (now - last_rosters_ > series_gap) stretch_began_ = now;
    last_rosters_ = now;
    next_rosters_ = now + wait + wait * ((now - stretch_began_) / stretch_unit);
  }
  std::optional<Clock::Time> due;
  if (!moved_.empty()) due = next_membership_changes_;
  if (!changed_.empty()) due = due ? std::min(*due, next_rosters_) : next_rosters_;
  return due;
}

std::size_t Rendezvous::send_membership_changes() {
  RunBuilder runs;
  for (const std::int32_t rank : moved_) {
    runs.add(rank, rank, static_cast<std::uint32_t>(seats_.at(rank).presence));
  }
  moved_.clear();
  const std::vector<ClientId> all = everybody();
  send_(all, wire::MembershipChanges{runs.take()});
  return all.size();
}

std::vector<Rendezvous::ClientId> Rendezvous::everybody() const {
  std::vector<ClientId> all;
  for (const auto& [client, is] : clients_) all.push_back(client);
  return all;
}

std::size_t Rendezvous::send_rosters() {
  std::size_t messages = 0;
  for (const std::string& name : changed_) {
    const auto found = names_.find(name);
    if (found == names_.end()) continue;  // erased in the meantime
    Name& roster = found->second;
    wire::Roster message = roster.sent.message_for(roster.changes);
    message.publication = name;
    roster.changes.clear();
    if (message.runs.empty()) continue;
    roster.sent.apply(message, members_);
    send_(roster.watchers, message);
    messages += roster.watchers.size();
  }
  changed_.clear();
  return messages;
}

// --- gather ---

void Rendezvous::gather(ClientId from, const wire::Gather& gather) {
  const std::int32_t rank = rank_of(from, "gathers");
  make_room_for_gather(from, gather);
  Gathering& gathering = gathers_[gather.name];
  if (const auto before = gathering.values.find(rank); before != gathering.values.end()) {
    gathering.bytes -= size_with(before->second);
  }
  gathering.bytes += size_with(gather.value);
  if (gathering.refusal.empty() && gathering.bytes > wire::max_message_bytes - gather_margin_bytes) {
    refuse_gather(gathering,
                  fmt::format("the values of '{}' are too large for one message of {} bytes: member {} adds "
                              "{} and makes it {}",
                              gather.name, wire::max_message_bytes, rank, gather.value.size(), gathering.bytes));
  }
  if (!gathering.refusal.empty()) {
    gathering.values[rank] = {};
    const Error refusal(ErrorCode::invalid_argument, gathering.refusal);
    if (gathering.values.size() == static_cast<std::size_t>(members_)) gathers_.erase(gather.name);
    throw refusal;
  }
  gathering.values[rank] = gather.value;
  if (gather.while_waiting) {
    gathering.while_waiting.insert(rank);
  } else {
    gathering.while_waiting.erase(rank);
  }
  gathering.survivors = gather.survivors;
  gathering.meeting = gather.meeting;
  gathering.requests[from] = gather.request;
  gathering.waiting.push_back(from);
  gathering.absent.reset();
  check_gather(gather.name);
}

void Rendezvous::complete_gather(const std::string& name) {
  Gathering done = std::move(gathers_.extract(name).mapped());
  if (done.meeting) lost_since_meeting_.clear();
  wire::Gathered result{name, std::vector<Bytes>(static_cast<std::size_t>(members_))};
  for (auto& [member, value] : done.values) result.values[static_cast<std::size_t>(member)] = std::move(value);
  // Members may rely on everything that preceded a gather, so a publication must not arrive after its result.
  if (!moved_.empty()) send_membership_changes();
  if (!changed_.empty()) send_rosters();
  send_(done.waiting, result);
}

// Drops values of gathers that their member no longer waits for, if there are many.
void Rendezvous::make_room_for_gather(ClientId from, const wire::Gather& gather) {
  const std::int32_t rank = member_of(from).rank;
  auto& names = seats_.at(rank).gathers;
  std::size_t bytes = gather.value.size();
  std::erase_if(names, [&](const std::string& name) {
    const auto found = gathers_.find(name);
    if (found == gathers_.end() || !found->second.values.contains(rank) || name == gather.name) return true;
    bytes += found->second.values.at(rank).size();
    return false;
  });
  const auto too_much = [&] { return names.size() >= max_unfinished_gathers || bytes > max_unfinished_gather_bytes; };
  for (auto name = names.begin(); too_much() && name != names.end();) {
    Gathering& gathering = gathers_.at(*name);
    if (std::find(gathering.waiting.begin(), gathering.waiting.end(), from) != gathering.waiting.end()) {
      ++name;
      continue;
    }
    const auto value = gathering.values.extract(rank);
    bytes -= value.mapped().size();
    gathering.bytes -= size_with(value.mapped());
    if (gathering.values.empty()) gathers_.erase(*name);
    name = names.erase(name);
  }
  if (too_much()) {
    refuse_more(rank, fmt::format("waits in {} gathers already with {} bytes for another, and may in {} with {}",
                                  names.size(), bytes, max_unfinished_gathers, max_unfinished_gather_bytes));
  }
  names.push_back(gather.name);
}

bool Rendezvous::waits_for(const Gathering& gathering, std::int32_t rank) const {
  return !gathering.values.contains(rank) && !(gathering.survivors && lost_since_meeting_.contains(rank));
}

bool Rendezvous::is_complete(const Gathering& gathering) const {
  std::size_t count = gathering.values.size();
  for (const std::int32_t rank : lost_since_meeting_) {
    count += gathering.survivors && !gathering.values.contains(rank) ? 1 : 0;
  }
  return count == static_cast<std::size_t>(members_);
}

void Rendezvous::check_gather(const std::string& name) {
  Gathering& gathering = gathers_.at(name);
  if (!gathering.waiting.empty()) {
    if (is_complete(gathering)) return complete_gather(name);
    wire::GatherAbsent absent{name, true, {}};
    for (const std::int32_t rank : departed_) {
      if (!is_guest(rank) && waits_for(gathering, rank)) absent.members.push_back(rank);
    }
    if (!absent.members.empty()) {
      send_(gathering.waiting, absent);
      for (const ClientId client : std::exchange(gathering.waiting, {}))
        drop_value(gathering, clients_.at(client).rank);
    }
  }
  if (gathering.values.empty()) gathers_.erase(name);
}

void Rendezvous::drop_value(Gathering& gathering, std::int32_t rank) {
  if (!gathering.refusal.empty()) return;  // only counts who came
  const auto value = gathering.values.extract(rank);
  if (!value.empty()) gathering.bytes -= size_with(value.mapped());
  gathering.while_waiting.erase(rank);
}

std::size_t Rendezvous::waiting_gathers() const {
  std::size_t waiting = 0;
  for (const auto& [name, gathering] : gathers_) waiting += gathering.waiting.size();
  return waiting;
}

// Ends the waiting for a result that cannot come.
void Rendezvous::refuse_gather(Gathering& gathering, std::string why) {
  gathering.refusal = std::move(why);
  for (auto& [rank, value] : gathering.values) value = {};
  for (const ClientId client : gathering.waiting) {
    send_({&client, 1}, wire::Failure{gathering.requests.at(client), ErrorCode::invalid_argument, gathering.refusal});
  }
  gathering.waiting.clear();
}

void Rendezvous::quit_gather(ClientId from, const std::string& name) {
  const std::int32_t rank = member_of(from).rank;
  const auto found = gathers_.find(name);
  if (found == gathers_.end()) return;  // already ending
  const auto waits = std::ranges::find(found->second.waiting, from);
  if (waits == found->second.waiting.end()) return;  // it has its answer: this gather is a later one of others
  found->second.waiting.erase(waits);
  auto& absent = found->second.absent;  // computed once, as many may quit at once
  if (!absent) {
    absent = wire::GatherAbsent{name, false, {}};
    for (std::int32_t other = 0; other < members_; ++other) {
      if (waits_for(found->second, other)) absent->members.push_back(other);
    }
  }
  send_({&from, 1}, *absent);
  if (found->second.while_waiting.contains(rank)) drop_value(found->second, rank);
  if (found->second.values.empty()) gathers_.erase(found);
}

// --- exchanges ---

// Members run the same exchanges in the same order, and the first one that stops is the reason for the others: as many
// messages as members, however many of them stop.
void Rendezvous::give_up(ClientId from, wire::ExchangeGivenUp notice) {
  notice.member = rank_of(from, "exchanges");
  if (notice.exchange <= given_up_) return;
  given_up_ = notice.exchange;
  send_(everybody(), notice);
}

// --- attempts ---

// At once: a member that has told it, and gathers then, knows that all have heard of it when the gather is complete.
void Rendezvous::raise_attempt(ClientId from, std::uint32_t attempt) {
  rank_of(from, "the count of attempts");
  if (attempt <= attempt_) return;
  attempt_ = attempt;
  send_(everybody(), wire::AttemptRaised{attempt});
}

}  // namespace shardwire
