// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "control/roster_table.hpp"
#include "runtime/clock.hpp"
#include "wire/messages.hpp"

namespace shardwire {

/// State that member 0 keeps for the job: members and guests with addresses, publications by name, gathers in progress. Sends
/// every member the departures, and the roster of each name it watches, after the addresses of few publishers. Other addresses go
/// to members that request them.
/// Changes for all members are sent in batches: after a message to n members the next one waits n * 30 us, at most 0.5
/// s. Sending thus takes a bounded share of this member's time, and a job whose members publish one by one costs each
/// of them a few bytes per publication. Up to 33 members receive every change at once. Rosters wait longer the longer
/// publications have been arriving, up to a thirtieth of that time: a job that publishes for ten minutes would
/// otherwise cause a thousand messages.
/// Knows no connections: clients are numbers, and messages leave through a function. Threads: loop thread only.
class Rendezvous {
 public:
  using ClientId = std::uint64_t;
  /// Must not call back before it returns. Skips clients that are gone.
  using Send = std::function<void(std::span<const ClientId> to, const wire::Message& message)>;

  /// `session`: a random number for this session.
  Rendezvous(std::int32_t members, std::uint64_t session, Send send)
      : members_(members), session_(session), send_(std::move(send)) {}

  /// Whether the rendezvous handles this message.
  static bool serves(const wire::Message& message);
  /// Whether a message of the rendezvous is unrequested, not an answer.
  static bool is_notice(const wire::Message& message);
  /// Errors: throws Error{invalid_argument} for a forbidden request, such as joining under a taken number.
  /// The session begins with the first Join, which is that of member 0.
  void take(ClientId from, const wire::Hello& peer, const wire::Message& message, Clock::Time now);
  void closed(ClientId client, bool orderly);
  /// The client that holds this member number.
  [[nodiscard]] std::optional<ClientId> holder(std::int32_t rank) const;
  /// Sends the changes that are due. Returns the time of the next call; call it after take() and closed() as well.
  std::optional<Clock::Time> flush(Clock::Time now);
  /// Waits of members for gathers.
  [[nodiscard]] std::size_t waiting_gathers() const;

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
    std::vector<std::string> gathers{};  // that have its value, including ended ones; the oldest first
  };
  struct Name {
    RosterTable sent;  // state of all watchers
    RosterTable::Changes changes;
    std::vector<ClientId> watchers;
    [[nodiscard]] bool idle() const { return watchers.empty() && changes.empty() && sent.empty(); }
  };
  struct Gathering {
    std::map<std::int32_t, Bytes> values;
    std::size_t bytes = 0;
    std::vector<ClientId> waiting;
    std::set<std::int32_t> while_waiting{};      // members whose values count only while they wait
    bool survivors = false;                      // members of lost_since_meeting_ are not waited for
    bool meeting = false;                        // lost_since_meeting_ is empty once it is complete
    std::optional<wire::GatherAbsent> absent;    // for members that quit, until the next value arrives
    std::map<ClientId, std::uint64_t> requests;  // of all members that have sent their values
    std::string refusal;                         // reason of failure, for present and later participants
  };

  void join(ClientId from, const wire::Hello& peer, const wire::MemberRecord& member, Clock::Time now);
  void publish(ClientId from, const wire::Publish& publish);
  void set(const std::string& name, Name& roster, std::int32_t rank,
           const std::optional<wire::PublicationRecord>& record);
  void watch(ClientId from, const std::string& name);
  void unwatch(ClientId from, const std::string& name);
  void look_up(ClientId from, const std::vector<std::int32_t>& members);
  void gather(ClientId from, const wire::Gather& gather);
  void make_room_for_gather(ClientId from, const wire::Gather& gather);
  void quit_gather(ClientId from, const std::string& name);
  void give_up(ClientId from, wire::ExchangeGivenUp notice);
  void raise_attempt(ClientId from, std::uint32_t attempt);
  void refuse_gather(Gathering& gathering, std::string why);
  /// Ends a gather that is complete, or that waits for a departed member: those who waited for it have to come again.
  /// Requires: there is a gather of that name.
  void check_gather(const std::string& name);
  [[nodiscard]] bool waits_for(const Gathering& gathering, std::int32_t rank) const;
  [[nodiscard]] bool is_complete(const Gathering& gathering) const;
  void complete_gather(const std::string& name);
  static void drop_value(Gathering& gathering, std::int32_t rank);
  [[nodiscard]] wire::MembershipChanges membership_changes() const;
  [[nodiscard]] std::vector<ClientId> everybody() const;
  /// Each sends its changes and returns the number of messages.
  std::size_t send_membership_changes();
  std::size_t send_rosters();
  Client& member_of(ClientId from);
  /// The member number of a client that is no guest.
  std::int32_t rank_of(ClientId from, const char* what);
  [[nodiscard]] bool is_guest(std::int32_t rank) const { return rank >= members_; }
  [[nodiscard]] std::int32_t free_guest() const;

  std::int32_t members_;
  std::uint64_t session_;
  std::uint32_t attempt_ = 0;  // of the session, as far as members have told
  std::optional<Clock::Time> began_;
  Send send_;
  std::map<ClientId, Client> clients_;  // joined clients
  std::map<std::int32_t, Seat> seats_;  // those of guests come after the members'
  std::set<std::int32_t> departed_;     // members that are absent
  std::set<std::int32_t> moved_;        // members whose departure or return is not yet sent
  std::map<std::string, Name> names_;
  std::set<std::string> changed_;  // names with changes
  std::map<std::string, Gathering> gathers_;
  std::set<std::int32_t> lost_since_meeting_;  // members, since a `meeting` was complete
  std::uint64_t given_up_ = 0;                 // the last exchange that a member gave up
  Clock::Time next_membership_changes_{};
  Clock::Time next_rosters_{};
  Clock::Time last_rosters_{};
  Clock::Time stretch_began_{};
};

}  // namespace shardwire
