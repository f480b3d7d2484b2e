// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "session/control/roster_table.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// What member 0 keeps for the job: who is there and where, who publishes what under which name, gathers under way. Every
/// member is told who departs, and the roster of each name that it watches; addresses go to those who ask.
///
/// Changes that everybody hears of are sent together: after a message to n members the next one waits n * 30 us, at most
/// half a second, so that sending takes a bounded share of this member's time, and a job whose members publish one by one
/// costs each of them a few bytes per publication. Up to 33 members hear everything at once. Rosters wait longer the
/// longer publications have been coming, in all a thirtieth of that time at most: a job that publishes for ten minutes
/// would else hear of it in a thousand messages.
///
/// Knows no connections: clients are numbers, and messages to them leave through a function. Threads: loop thread only.
class Rendezvous {
 public:
  using Clock = std::chrono::steady_clock;
  using ClientId = std::uint64_t;
  /// Must not call back before it has returned. Clients that are gone are passed over.
  using Send = std::function<void(std::span<const ClientId> to, const wire::Message& message)>;

  Rendezvous(std::int32_t members, Send send) : members_(members), send_(std::move(send)) {}

  /// Whether a message is one for the rendezvous.
  static bool serves(const wire::Message& message);
  /// Whether a message of the rendezvous is news, and no answer.
  static bool is_notice(const wire::Message& message);
  /// Errors: throws Error{invalid_argument} for what a member may not do, such as joining under a number that is taken.
  void take(ClientId from, const wire::Hello& peer, const wire::Message& message);
  void closed(ClientId client, bool orderly);
  /// The member that has this number now.
  [[nodiscard]] std::optional<ClientId> holder(std::int32_t rank) const;
  /// Sends the changes that are due. Returns when to be called again; call it after take() and closed() as well.
  std::optional<Clock::time_point> flush(Clock::time_point now);

 private:
  struct Client {
    std::int32_t rank = 0;
    std::set<std::string> watched;
    std::set<std::string> published;
  };
  struct Seat {
    std::uint32_t epoch = 0;
    wire::Presence presence = wire::Presence::there;
    ClientId client = 0;
    wire::MemberRecord member;
    std::vector<std::string> gathers{};  // that have its value, some of them over by now; the oldest first
  };
  struct Name {
    RosterTable sent;  // what all watchers have
    RosterTable::Changes changes;
    std::vector<ClientId> watchers;
    [[nodiscard]] bool idle() const { return watchers.empty() && changes.empty() && sent.empty(); }
  };
  struct Gathering {
    std::map<std::int32_t, Bytes> values;
    std::size_t bytes = 0;
    std::vector<ClientId> waiting;
    std::optional<wire::GatherAbsent> absent;    // for those who quit, until the next value comes
    std::map<ClientId, std::uint64_t> requests;  // of all that came
    std::string refusal;                         // why it fails for those who came and those who still come
  };

  void join(ClientId from, const wire::Hello& peer, const wire::MemberRecord& member);
  void publish(ClientId from, const wire::Publish& publish);
  void set(const std::string& name, Name& roster, std::int32_t rank,
           const std::optional<wire::PublicationRecord>& record);
  void watch(ClientId from, const std::string& name);
  void look_up(ClientId from, const std::vector<std::int32_t>& members);
  void gather(ClientId from, const wire::Gather& gather);
  void make_room_for_gather(ClientId from, const wire::Gather& gather);
  void quit_gather(ClientId from, const std::string& name);
  void refuse_gather(Gathering& gathering, std::string why);
  /// Ends a gather that a departed member has not come to.
  void check_gather(const std::string& name, Gathering& gathering);
  [[nodiscard]] wire::MembershipChanges membership_changes() const;
  /// Each sends what has changed and returns the number of messages.
  std::size_t send_membership_changes();
  std::size_t send_rosters();
  Client& member_of(ClientId from);

  std::int32_t members_;
  Send send_;
  std::map<ClientId, Client> clients_;  // those that have joined
  std::map<std::int32_t, Seat> seats_;
  std::set<std::int32_t> departed_;  // members that are not there
  std::set<std::int32_t> moved_;     // members whose departure or return was not sent yet
  std::map<std::string, Name> names_;
  std::set<std::string> changed_;  // names with changes
  std::map<std::string, Gathering> gathers_;
  Clock::time_point next_membership_changes_{};
  Clock::time_point next_rosters_{};
  Clock::time_point last_rosters_{};
  Clock::time_point stretch_began_{};
};

}  // namespace shardwire
