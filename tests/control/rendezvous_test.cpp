// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "control/directory.hpp"
#include "control/gathers.hpp"
#include "control/rendezvous.hpp"
#include "support/made_clock.hpp"
#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(rendezvous)

using namespace shardwire;
using namespace std::chrono_literals;

namespace {

/// A rendezvous without sockets: each client keeps a directory and its other messages, all encoded and decoded.
struct Job {
  struct Client {
    wire::Hello hello;
    Directory directory;
    std::size_t messages = 0;
    std::vector<wire::Message> others;
    bool introduced = false;  ///< it had the addresses of all publishers when the last whole roster came
  };

  explicit Job(std::int32_t members)
      : size(members), rendezvous(members, 77, [this](auto to, const wire::Message& message) {
          const Bytes encoded = wire::encode(message);
          for (const auto client : to) receive(client, wire::decode(encoded));
        }) {}

  void receive(Rendezvous::ClientId to, const wire::Message& message) {
    const auto found = clients.find(to);
    if (found == clients.end()) return;
    ++found->second.messages;
    Directory& directory = found->second.directory;
    if (const auto* roster = std::get_if<wire::Roster>(&message)) {
      directory.apply(*roster);
      if (!roster->whole) return;
      const auto records = directory.publications(roster->publication);
      found->second.introduced = std::ranges::all_of(
          records, [&](const auto& record) { return directory.address(record.member, record.epoch) != nullptr; });
    } else if (const auto* membership_changes = std::get_if<wire::MembershipChanges>(&message)) {
      directory.apply(*membership_changes);
    } else if (const auto* addresses = std::get_if<wire::Addresses>(&message)) {
      directory.apply(*addresses);
    } else if (const auto* given_up = std::get_if<wire::ExchangeGivenUp>(&message)) {
      directory.apply(*given_up);
    } else {
      found->second.others.push_back(message);
    }
  }

  /// A new process with that rank; returns its connection.
  Rendezvous::ClientId join(std::int32_t rank) {
    const Rendezvous::ClientId id = next++;
    wire::Hello hello;
    hello.rank = rank;
    hello.incarnation = 1000 + id;
    clients.emplace(id, Client{hello, Directory(size), 0, {}});
    send(id, wire::Join{{.rank = rank, .incarnation = hello.incarnation, .host = "h", .address = "10.0.0.1"}});
    return id;
  }
  void send(Rendezvous::ClientId from, const wire::Message& message) {
    rendezvous.take(from, clients.at(from).hello, wire::decode(wire::encode(message)), now);
    flush();
  }
  void publish(Rendezvous::ClientId from, std::int64_t step, bool live = true) {
    const std::int32_t rank = clients.at(from).hello.rank;
    send(from,
         wire::Publish{"state", {.member = rank, .layout_rank = rank, .step = step, .generation = 1, .live = live}});
  }
  void close(Rendezvous::ClientId id, bool orderly) {
    clients.erase(id);
    rendezvous.closed(id, orderly);
    flush();
  }
  std::optional<Clock::Time> flush() { return due = rendezvous.flush(now); }
  void pass(std::chrono::nanoseconds time) {
    now += time;
    flush();
  }
  /// Members whose publications the client knows.
  std::vector<int> publishers(Rendezvous::ClientId id) {
    std::vector<int> result;
    for (const auto& record : clients.at(id).directory.publications("state")) result.push_back(record.member);
    return result;
  }
  template <typename Type>
  Type last(Rendezvous::ClientId id) {
    BOOST_REQUIRE(!clients.at(id).others.empty());
    const auto* message = std::get_if<Type>(&clients.at(id).others.back());
    BOOST_REQUIRE(message != nullptr);
    return *message;
  }

  std::int32_t size;
  std::map<Rendezvous::ClientId, Client> clients;
  Rendezvous::ClientId next = 0;
  Clock::Time now{1h};
  std::optional<Clock::Time> due;
  Rendezvous rendezvous;
};

using Numbers = std::vector<int>;

void check_refused(Job& job, Rendezvous::ClientId from, const wire::Message& message) {
  BOOST_CHECK_EXCEPTION(job.send(from, message), Error,
                        [](const Error& error) { return error.code() == ErrorCode::invalid_argument; });
}

void check_too_much(Job& job, Rendezvous::ClientId from, const wire::Message& message) {
  BOOST_CHECK_EXCEPTION(job.send(from, message), Error,
                        [](const Error& error) { return error.code() == ErrorCode::out_of_resources; });
}

std::vector<int> lost_of(const Directory& directory) {
  std::vector<int> lost;
  for (const auto& [member, presence] : directory.departed()) {
    if (presence == wire::Presence::lost) lost.push_back(member);
  }
  return lost;
}

}  // namespace

BOOST_AUTO_TEST_CASE(notices_are_what_nobody_has_asked_for) {
  BOOST_TEST(Rendezvous::is_notice(wire::MembershipChanges{}));
  BOOST_TEST(Rendezvous::is_notice(wire::Roster{.publication = "state", .groups = {}, .runs = {}}));
  BOOST_TEST(!Rendezvous::is_notice(wire::Roster{.publication = "state", .whole = true, .groups = {}, .runs = {}}));
  BOOST_TEST(!Rendezvous::is_notice(wire::Gathered{}));
}

BOOST_AUTO_TEST_CASE(a_watcher_hears_what_was_published_before_and_after_it_came) {
  Job job(4);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  job.publish(zero, 7);
  job.send(one, wire::Watch{"state"});
  BOOST_TEST((job.publishers(one) == Numbers{0}));
  job.publish(one, 7);
  BOOST_TEST((job.publishers(one) == Numbers{0, 1}));
  const auto late = job.join(3);
  BOOST_TEST(job.publishers(late).empty());  // it has not watched yet
  job.send(late, wire::Watch{"state"});
  BOOST_TEST((job.publishers(late) == Numbers{0, 1}));
  job.publish(zero, 7, false);
  BOOST_TEST((job.publishers(one) == Numbers{1}));
  BOOST_TEST((job.publishers(late) == Numbers{1}));
  BOOST_TEST(job.publishers(zero).empty());
}

BOOST_AUTO_TEST_CASE(a_member_that_watches_a_name_no_more_hears_of_it_when_it_watches_again) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  job.send(one, wire::Unwatch{"state"});  // never watched
  job.send(one, wire::Watch{"state"});
  job.publish(zero, 7);
  job.send(one, wire::Unwatch{"state"});
  const std::size_t before = job.clients.at(one).messages;
  job.publish(one, 7);
  job.publish(zero, 8);
  BOOST_TEST(job.clients.at(one).messages == before);
  job.clients.at(one).directory.forget("state");
  job.send(one, wire::Watch{"state"});
  BOOST_TEST((job.publishers(one) == Numbers{0, 1}));
  BOOST_TEST(job.clients.at(one).directory.publication("state", 0).value().step == 8);
}

BOOST_AUTO_TEST_CASE(watching_a_name_that_nobody_publishes_is_answered) {
  Job job(2);
  const auto zero = job.join(0);
  job.send(zero, wire::Watch{"state"});
  BOOST_TEST(job.clients.at(zero).directory.knows("state"));
  const std::size_t before = job.clients.at(zero).messages;
  job.send(zero, wire::Watch{"state"});
  BOOST_TEST(job.clients.at(zero).messages == before);  // the second one sends nothing
}

BOOST_AUTO_TEST_CASE(addresses_of_few_publishers_come_before_their_roster) {
  constexpr int few = 64;
  Job job(few + 3);
  for (int rank = 0; rank < few; ++rank) job.publish(job.join(rank), 7);
  const auto early = job.join(few + 1);
  job.send(early, wire::Watch{"state"});
  const Job::Client& of_few = job.clients.at(early);
  BOOST_TEST(job.publishers(early).size() == std::size_t{few});
  BOOST_TEST(of_few.introduced);
  BOOST_TEST(of_few.directory.address(5, 1)->incarnation == 1005U);
  job.publish(job.join(few), 7);
  BOOST_TEST(job.publishers(early).size() == std::size_t{few + 1});
  BOOST_TEST(of_few.directory.address(few, 1) == nullptr);  // it publishes later

  const auto late = job.join(few + 2);
  job.send(late, wire::Watch{"state"});
  const Job::Client& of_many = job.clients.at(late);
  BOOST_TEST(job.publishers(late).size() == std::size_t{few + 1});
  for (int rank = 0; rank <= few; ++rank) BOOST_TEST(of_many.directory.address(rank, 1) == nullptr);
}

BOOST_AUTO_TEST_CASE(a_publisher_that_the_roster_still_has_and_that_is_gone_has_no_address) {
  constexpr int members = 40;  // so many watch that rosters are delayed
  Job job(members + 1);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < members; ++rank) {
    ids.push_back(job.join(rank));
    job.send(ids.back(), wire::Watch{"state"});
  }
  job.publish(ids[3], 7);
  job.publish(ids[4], 7);  // delayed
  job.close(ids[3], false);
  const auto successor = job.join(3);
  const auto late = job.join(members);
  job.send(late, wire::Watch{"state"});
  const Directory& directory = job.clients.at(late).directory;
  BOOST_TEST((job.publishers(late) == Numbers{3}));
  BOOST_TEST(!job.clients.at(late).introduced);
  BOOST_TEST(directory.address(3, 1) == nullptr);
  BOOST_TEST(directory.address(3, 2)->incarnation == 1000 + successor);
  job.pass(500ms);
  BOOST_TEST((job.publishers(late) == Numbers{4}));
}

BOOST_AUTO_TEST_CASE(a_lost_member_and_what_it_published_are_gone_and_its_successor_has_another_epoch) {
  Job job(3);
  const auto zero = job.join(0);
  auto two = job.join(2);
  BOOST_TEST(job.last<wire::Joined>(two).epoch == 1U);
  job.send(zero, wire::Watch{"state"});
  job.publish(two, 7);
  job.send(zero, wire::Lookup{{1, 2}});
  const Directory& directory = job.clients.at(zero).directory;
  BOOST_TEST(directory.address(2, 1)->incarnation == 1000 + two);
  BOOST_TEST(directory.address(1, 1) == nullptr);

  job.close(two, false);
  BOOST_TEST(job.publishers(zero).empty());
  BOOST_TEST((lost_of(directory) == Numbers{2}));
  const auto late = job.join(1);
  BOOST_TEST((lost_of(job.clients.at(late).directory) == Numbers{2}));

  two = job.join(2);
  BOOST_TEST(job.last<wire::Joined>(two).epoch == 2U);
  BOOST_TEST(lost_of(directory).empty());
  BOOST_TEST(lost_of(job.clients.at(late).directory).empty());
  BOOST_TEST(job.publishers(zero).empty());  // the predecessor's publication stays withdrawn
  job.publish(two, 8);
  BOOST_REQUIRE(directory.publications("state").size() == 1U);
  BOOST_TEST(directory.publications("state")[0].epoch == 2U);
  BOOST_TEST(directory.publications("state")[0].step == 8);
  BOOST_TEST(directory.address(2, 2) == nullptr);  // the predecessor's address is not the successor's
  job.send(zero, wire::Lookup{{2}});
  BOOST_TEST(directory.address(2, 2)->incarnation == 1000 + two);

  job.close(two, true);
  BOOST_TEST(lost_of(directory).empty());
  BOOST_TEST((directory.presence(2) == wire::Presence::left));
}

BOOST_AUTO_TEST_CASE(what_a_member_may_not_do_is_refused) {
  Job job(3);
  const auto one = job.join(1);
  job.clients.emplace(50, Job::Client{{}, Directory(3), 0, {}});
  job.clients.at(50).hello.rank = 1;
  check_refused(job, 50, wire::Join{{.rank = 1}});  // taken
  check_refused(job, 50, wire::Join{{.rank = 2}});  // not the rank in its hello
  job.clients.at(50).hello.rank = 3;
  check_refused(job, 50, wire::Join{{.rank = 3}});  // one too many
  check_refused(job, 50, wire::Watch{"state"});     // not joined
  check_refused(job, 50, wire::Gather{1, "all", {}});
  check_refused(job, one, wire::Join{{.rank = 1, .incarnation = 1000 + one}});  // twice
  check_refused(job, one, wire::Publish{"state", {.member = 2}});
  job.send(one, wire::Lookup{{1, 2, 3}});
  BOOST_TEST(job.clients.at(one).directory.address(1, 1) != nullptr);
}

// --- batches ---

BOOST_AUTO_TEST_CASE(a_small_job_hears_of_every_change_at_once) {
  Job job(33);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < 33; ++rank) {
    ids.push_back(job.join(rank));
    job.send(ids.back(), wire::Watch{"state"});
  }
  for (int rank = 0; rank < 33; ++rank) {
    job.publish(ids[static_cast<std::size_t>(rank)], 7);
    BOOST_TEST(!job.due);
    BOOST_TEST(job.publishers(ids[0]).size() == static_cast<std::size_t>(rank) + 1);
  }
}

BOOST_AUTO_TEST_CASE(a_large_job_hears_of_the_first_change_at_once_and_of_the_next_ones_together) {
  constexpr int members = 1000;
  Job job(members);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < members; ++rank) {
    ids.push_back(job.join(rank));
    job.send(ids.back(), wire::Watch{"state"});
  }
  const auto messages = [&] { return job.clients.at(ids[0]).messages; };
  const std::size_t before = messages();
  job.publish(ids[500], 7);
  BOOST_TEST(messages() == before + 1);
  for (int rank = 0; rank < 400; ++rank) job.publish(ids[static_cast<std::size_t>(rank)], 7);
  job.publish(ids[500], 7, false);
  BOOST_TEST(messages() == before + 1);
  BOOST_REQUIRE(job.due.has_value());
  BOOST_TEST((*job.due - job.now == 30ms));
  job.pass(30ms);
  BOOST_TEST(messages() == before + 2);
  BOOST_TEST(job.publishers(ids[999]).size() == 400U);
  BOOST_TEST(!job.due);
  job.pass(30ms);
  job.publish(ids[600], 7);
  BOOST_TEST(messages() == before + 3);  // no recent messages delay them
  // A late watcher receives the state that the others have, and then the same rosters.
  job.publish(ids[601], 7);
  job.close(ids[700], false);
  const auto late = job.join(700);
  job.send(late, wire::Watch{"state"});
  BOOST_TEST((job.publishers(late) == job.publishers(ids[0])));
  job.pass(500ms);
  BOOST_TEST((job.publishers(late) == job.publishers(ids[0])));
  BOOST_TEST(job.publishers(late).size() == 402U);
}

BOOST_AUTO_TEST_CASE(rosters_of_a_job_that_publishes_for_long_come_less_often_and_departures_do_not) {
  constexpr int members = 1000;
  Job job(members);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < members; ++rank) {
    ids.push_back(job.join(rank));
    job.send(ids.back(), wire::Watch{"state"});
  }
  std::chrono::milliseconds longest{};
  for (int rank = 0; rank < 600; ++rank) {  // one each second
    job.publish(ids[static_cast<std::size_t>(rank)], 7);
    if (job.due) longest = std::max(longest, std::chrono::ceil<std::chrono::milliseconds>(*job.due - job.now));
    job.pass(1s);
  }
  BOOST_TEST((longest > 500ms && longest < 1500ms));  // 30 ms a message, and as much again for each 16 s
  job.publish(ids[700], 7);
  job.publish(ids[701], 7);  // delayed by the rate limit
  const std::size_t before = job.clients.at(ids[0]).messages;
  job.close(ids[800], false);
  BOOST_TEST(job.clients.at(ids[0]).messages == before + 1);
  job.pass(60s);
  BOOST_TEST(job.publishers(ids[0]).size() == 602U);
  job.pass(60s);
  job.publish(ids[702], 7);
  job.publish(ids[703], 7);
  BOOST_REQUIRE(job.due.has_value());
  BOOST_TEST((*job.due - job.now < 31ms));  // after a quiet minute the delay starts from the beginning
}

BOOST_AUTO_TEST_CASE(who_hears_that_all_came_to_a_gather_has_heard_what_they_published_before) {
  constexpr int members = 200;  // enough that rosters are delayed
  Job job(members);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < members; ++rank) ids.push_back(job.join(rank));
  job.send(ids[0], wire::Watch{"state"});
  for (int rank = 0; rank < members; ++rank) {
    job.publish(ids[static_cast<std::size_t>(rank)], 7);
    job.send(ids[static_cast<std::size_t>(rank)], wire::Gather{0, "published", {}});
  }
  BOOST_TEST(job.publishers(ids[0]).size() == 200U);  // without any delay
}

BOOST_AUTO_TEST_CASE(any_order_of_events_ends_with_what_is_there) {
  std::mt19937_64 random(test_seed());
  constexpr int members = 60;
  for (int round = 0; round < test::rounds(10); ++round) {
    Job job(members);
    std::map<int, Rendezvous::ClientId> alive;
    std::map<int, std::int64_t> steps;
    std::vector<Rendezvous::ClientId> watchers;
    for (int event = 0; event < 600; ++event) {
      const int rank = static_cast<int>(random() % members);
      const auto is = alive.find(rank);
      const auto what = random() % 10;
      if (is == alive.end()) {
        alive[rank] = job.join(rank);
      } else if (what == 0) {
        job.close(is->second, random() % 2 == 0);
        std::erase(watchers, is->second);
        alive.erase(is);
        steps.erase(rank);
      } else if (what < 3) {
        job.send(is->second, wire::Watch{"state"});
        if (std::find(watchers.begin(), watchers.end(), is->second) == watchers.end()) watchers.push_back(is->second);
      } else if (what < 5) {
        job.publish(is->second, 0, false);
        steps.erase(rank);
      } else {
        steps[rank] = static_cast<std::int64_t>(random() % 3);
        job.publish(is->second, steps[rank]);
      }
      if (random() % 20 == 0) job.pass(1ms);
    }
    job.pass(1s);
    for (const auto id : watchers) {
      std::map<int, std::int64_t> seen;
      for (const auto& record : job.clients.at(id).directory.publications("state")) seen[record.member] = record.step;
      BOOST_TEST((seen == steps));
    }
  }
}

// --- gather ---

BOOST_AUTO_TEST_CASE(the_values_of_all_go_to_each_once) {
  Job job(3);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < 3; ++rank) ids.push_back(job.join(rank));
  for (int rank = 2; rank >= 0; --rank) {
    BOOST_TEST(job.clients.at(ids[2]).others.size() == 1U);  // Joined
    job.send(ids[static_cast<std::size_t>(rank)], wire::Gather{1, "all", Bytes(1, static_cast<std::byte>(rank))});
  }
  for (const auto id : ids) {
    const auto gathered = job.last<wire::Gathered>(id);
    BOOST_TEST((gathered.values == std::vector{Bytes{std::byte{0}}, Bytes{std::byte{1}}, Bytes{std::byte{2}}}));
  }
}

BOOST_AUTO_TEST_CASE(who_departs_before_coming_ends_a_gather_for_those_who_wait_and_those_who_come) {
  Job job(4);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < 4; ++rank) ids.push_back(job.join(rank));
  job.send(ids[1], wire::Gather{1, "all", {}});
  job.send(ids[3], wire::Gather{1, "all", {}});
  job.close(ids[3], true);  // it had contributed to the gather
  BOOST_TEST(job.clients.at(ids[1]).others.size() == 1U);
  job.close(ids[2], false);
  BOOST_TEST((job.last<wire::GatherAbsent>(ids[1]) == wire::GatherAbsent{"all", true, {2}}));
  job.send(ids[0], wire::Gather{1, "all", {}});
  BOOST_TEST((job.last<wire::GatherAbsent>(ids[0]) == wire::GatherAbsent{"all", true, {2}}));
  // A successor may take its rank. The others have received an error, so they come again.
  const auto two = job.join(2);
  for (const auto client : {two, ids[1], ids[0]}) {
    BOOST_TEST(!std::holds_alternative<wire::Gathered>(job.clients.at(two).others.back()));
    job.send(client, wire::Gather{1, "all", {}});
  }
  for (const auto client : {two, ids[1], ids[0]}) BOOST_TEST(job.last<wire::Gathered>(client).values.size() == 4U);
}

BOOST_AUTO_TEST_CASE(a_member_lost_while_it_waits_takes_its_value_along_and_its_successor_comes_anew) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  job.send(one, wire::Gather{1, "g", Bytes(1)});
  job.send(zero, wire::Gather{1, "g", Bytes(5)});
  job.close(one, false);
  BOOST_TEST((job.last<wire::GatherAbsent>(zero) == wire::GatherAbsent{"g", true, {1}}));
  job.send(two, wire::Gather{1, "g", Bytes(2)});
  BOOST_TEST((job.last<wire::GatherAbsent>(two) == wire::GatherAbsent{"g", true, {1}}));
  const auto successor = job.join(1);
  job.send(successor, wire::Gather{1, "g", Bytes(3)});
  job.send(zero, wire::Gather{2, "g", Bytes(4)});
  job.send(two, wire::Gather{2, "g", Bytes(2)});
  const wire::Gathered all{"g", {Bytes(4), Bytes(3), Bytes(2)}};
  for (const auto client : {zero, successor, two}) BOOST_TEST((job.last<wire::Gathered>(client) == all));
}

BOOST_AUTO_TEST_CASE(a_successor_does_not_inherit_the_value_of_a_process_that_left) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  job.send(one, wire::Gather{1, "g", Bytes(1)});
  job.close(one, true);
  const auto successor = job.join(1);
  job.send(zero, wire::Gather{1, "g", {}});
  BOOST_TEST(job.clients.at(zero).others.size() == 1U);  // nothing since it joined
  job.send(successor, wire::Gather{1, "g", Bytes(3)});
  BOOST_TEST((job.last<wire::Gathered>(zero) == wire::Gathered{"g", {{}, Bytes(3)}}));
}

BOOST_AUTO_TEST_CASE(who_waits_no_longer_hears_who_did_not_come) {
  Job job(4);
  const auto zero = job.join(0);
  const auto two = job.join(2);
  job.send(zero, wire::Gather{1, "all", {}});
  job.send(two, wire::Gather{1, "all", {}});
  job.send(zero, wire::GatherQuit{"all"});
  BOOST_TEST((job.last<wire::GatherAbsent>(zero) == wire::GatherAbsent{"all", false, {1, 3}}));
  BOOST_TEST(std::holds_alternative<wire::Joined>(job.clients.at(two).others.back()));
  const std::size_t before = job.clients.at(zero).messages;
  job.send(zero, wire::GatherQuit{"nothing"});
  BOOST_TEST(job.clients.at(zero).messages == before);
}

BOOST_AUTO_TEST_CASE(a_value_that_counts_while_its_member_waits_is_gone_when_it_quits) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  const auto now = [](std::size_t bytes) { return wire::Gather{1, "g", Bytes(bytes), true}; };
  job.send(zero, now(1));
  job.send(one, now(1));
  job.send(zero, wire::GatherQuit{"g"});
  job.send(one, wire::GatherQuit{"g"});
  for (const auto client : {zero, one}) {
    BOOST_TEST((job.last<wire::GatherAbsent>(client) == wire::GatherAbsent{"g", false, {2}}));
  }
  job.send(two, now(3));
  job.send(one, now(2));
  BOOST_TEST(job.clients.at(two).others.size() == 1U);  // nothing since it joined
  job.send(zero, wire::Gather{1, "g", Bytes(4)});       // this one stays
  const wire::Gathered all{"g", {Bytes(4), Bytes(2), Bytes(3)}};
  for (const auto client : {zero, one, two}) BOOST_TEST((job.last<wire::Gathered>(client) == all));
  job.send(one, now(2));
  job.close(one, true);
  const auto successor = job.join(1);
  job.send(zero, now(1));
  job.send(two, now(1));
  BOOST_TEST(!std::holds_alternative<wire::Gathered>(job.clients.at(successor).others.back()));
  job.send(successor, now(5));
  BOOST_TEST((job.last<wire::Gathered>(successor) == wire::Gathered{"g", {Bytes(1), Bytes(5), Bytes(1)}}));
}

// --- gathers of survivors ---

namespace {

wire::Gather of_survivors(std::size_t bytes) {
  return {1, "wave", Bytes(bytes), false, true};
}
wire::Gather meeting() {
  return {1, "meeting", {}, true, false, true};
}

}  // namespace

BOOST_AUTO_TEST_CASE(survivors_do_not_wait_for_a_member_that_is_lost_while_they_wait) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  job.send(zero, of_survivors(1));
  job.send(two, of_survivors(3));
  job.close(two, false);  // its value goes with it
  BOOST_TEST(job.clients.at(zero).others.size() == 1U);
  job.send(one, of_survivors(2));
  for (const auto client : {zero, one}) {
    BOOST_TEST((job.last<wire::Gathered>(client) == wire::Gathered{"wave", {Bytes(1), Bytes(2), {}}}));
    BOOST_TEST((job.clients.at(client).directory.presence(2) == wire::Presence::lost));
  }
  // One that comes last ends the wait by its loss.
  job.send(zero, of_survivors(4));
  job.close(one, false);
  BOOST_TEST((job.last<wire::Gathered>(zero) == wire::Gathered{"wave", {Bytes(4), {}, {}}}));
}

BOOST_AUTO_TEST_CASE(survivors_do_not_wait_for_the_replacement_of_a_lost_member_until_all_have_met_again) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  job.close(two, false);
  const auto successor = job.join(2);
  for (const auto client : {zero, one}) job.send(client, of_survivors(1));
  BOOST_TEST((job.last<wire::Gathered>(one) == wire::Gathered{"wave", {Bytes(1), Bytes(1), {}}}));
  for (const auto client : {zero, one, successor}) job.send(client, meeting());
  for (const auto client : {zero, one}) job.send(client, of_survivors(1));
  BOOST_TEST((job.last<wire::Gathered>(one).name == "meeting"));
  job.send(successor, of_survivors(1));
  BOOST_TEST((job.last<wire::Gathered>(one) == wire::Gathered{"wave", {Bytes(1), Bytes(1), Bytes(1)}}));
}

BOOST_AUTO_TEST_CASE(a_barrier_is_no_meeting_of_survivors) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  job.close(two, false);
  const auto successor = job.join(2);
  for (const auto client : {zero, one, successor}) job.send(client, wire::Gather{1, "barrier", {}, true});
  BOOST_TEST((job.last<wire::Gathered>(successor).name == "barrier"));
  for (const auto client : {zero, one}) job.send(client, of_survivors(1));
  BOOST_TEST((job.last<wire::Gathered>(one) == wire::Gathered{"wave", {Bytes(1), Bytes(1), {}}}));
}

BOOST_AUTO_TEST_CASE(survivors_do_wait_for_a_member_that_has_left_in_order) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  job.send(zero, of_survivors(1));
  job.close(one, true);
  BOOST_TEST((job.last<wire::GatherAbsent>(zero) == wire::GatherAbsent{"wave", true, {1}}));
}

BOOST_AUTO_TEST_CASE(a_loss_is_seen_though_the_member_comes_back_at_once) {
  Job job(40);  // changes wait for each other in a job of this size
  std::vector<Rendezvous::ClientId> all;
  for (int rank = 0; rank < 40; ++rank) all.push_back(job.join(rank));
  job.close(all[5], true);
  const std::size_t before = job.clients.at(all[0]).directory.losses();
  job.close(all[7], false);
  job.join(7);
  job.pass(10s);
  const Directory& directory = job.clients.at(all[0]).directory;
  BOOST_TEST((directory.presence(7) == wire::Presence::there));
  BOOST_TEST((directory.lost_since(before) == std::vector<int>{7}));
  BOOST_TEST(directory.lost_since(directory.losses()).empty());
  BOOST_TEST((directory.presence(5) == wire::Presence::left));
}

BOOST_AUTO_TEST_CASE(who_quits_a_gather_that_was_answered_gets_no_second_answer_and_ends_no_later_one) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  for (const auto client : {zero, one}) job.send(client, wire::Gather{1, "g", Bytes(1)});
  job.send(one, wire::Gather{2, "g", Bytes(2)});
  const std::size_t before = job.clients.at(zero).messages;
  job.send(zero, wire::GatherQuit{"g"});  // of the first one, sent before its result came
  BOOST_TEST(job.clients.at(zero).messages == before);
  BOOST_TEST(job.rendezvous.waiting_gathers() == 1U);
  job.send(zero, wire::Gather{2, "g", Bytes(3)});
  for (const auto client : {zero, one}) {
    BOOST_TEST((job.last<wire::Gathered>(client) == wire::Gathered{"g", {Bytes(3), Bytes(2)}}));
  }
}

// Else the member would have values of the gather before, and member 0 would count it as waiting for ever.
BOOST_AUTO_TEST_CASE(an_answer_to_a_gather_that_has_timed_out_ends_no_later_one_of_its_name) {
  test::MadeClock clock;
  Gathers gathers(clock, 2, [](const wire::Message&) {});
  std::vector<std::size_t> bytes;  // of member 0's value, 99 after an error
  const auto start = [&] {
    gathers.start("g", {}, Gathers::Kind::stays, 1s,
                  [&](const std::vector<Bytes>& values, const std::exception_ptr& error) {
                    bytes.push_back(error ? 99 : values.front().size());
                  });
  };
  start();
  clock.advance(3s);  // and the rendezvous does not say who is missing
  BOOST_TEST(bytes == std::vector<std::size_t>{99}, boost::test_tools::per_element());
  start();
  const auto gathered = [&](std::size_t size) { gathers.receive(wire::Gathered{"g", {Bytes(size), Bytes(1)}}); };
  gathered(1);
  BOOST_TEST(bytes.size() == 1U);
  BOOST_TEST(gathers.count() == 1U);
  gathered(2);
  BOOST_TEST((bytes == std::vector<std::size_t>{99, 2}));
  BOOST_TEST(gathers.count() == 0U);
}

BOOST_AUTO_TEST_CASE(a_gather_that_is_come_to_again_counts_once) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const wire::Gather large{1, "all", Bytes(wire::max_message_bytes / 2)};
  for (int i = 0; i < 3; ++i) {
    job.send(zero, large);
    job.send(zero, wire::GatherQuit{"all"});
  }
  job.send(one, wire::Gather{1, "all", {}});
  BOOST_TEST(job.last<wire::Gathered>(one).values.front().size() == large.value.size());
}

// --- limits on a member's stored data ---

namespace {

wire::ExchangeGivenUp given_up(std::uint64_t exchange) {
  wire::ExchangeGivenUp notice;
  notice.exchange = exchange;
  return notice;
}

}  // namespace

BOOST_AUTO_TEST_CASE(all_members_hear_once_that_an_exchange_is_given_up) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto two = job.join(2);
  const auto counts = [&] { return job.clients.at(zero).messages + job.clients.at(one).messages; };
  const wire::ExchangeGivenUp notice{.exchange = 2,
                                     .member = 1,  // another one than its sender
                                     .code = ErrorCode::peer_lost,
                                     .message = "member 1 was lost",
                                     .members = {1},
                                     .gaps = {{"w", "m", Box::whole({4}), Rank{2}}}};
  job.send(two, notice);
  for (const auto id : {zero, one}) {
    BOOST_TEST(job.clients.at(id).directory.is_given_up(1));  // a member still in an earlier exchange is too late
    BOOST_TEST(job.clients.at(id).directory.is_given_up(2));
    BOOST_TEST(!job.clients.at(id).directory.is_given_up(3));
    wire::ExchangeGivenUp received = notice;
    received.member = 2;
    BOOST_TEST((job.clients.at(id).directory.given_up() == received));
  }
  const std::size_t before = counts();
  job.send(one, given_up(2));
  job.send(one, given_up(1));
  BOOST_TEST(counts() == before);
  BOOST_TEST(Rendezvous::is_notice(given_up(1)));
}

BOOST_AUTO_TEST_CASE(names_of_one_member_are_limited_and_those_of_others_are_not) {
  constexpr int limit = 4096;
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto publish = [](int i, bool live) {
    return wire::Publish{std::to_string(i), {.member = 1, .generation = 1, .live = live}};
  };
  for (int i = 0; i < limit; ++i) {
    job.send(one, wire::Watch{std::to_string(i)});
    job.send(one, publish(i, true));
  }
  check_too_much(job, one, wire::Watch{"more"});
  check_too_much(job, one, publish(limit, true));
  job.send(one, publish(0, true));  // a new publication
  job.send(one, publish(1, false));
  job.send(one, publish(limit, true));
  job.send(zero, wire::Watch{"more"});
  job.publish(zero, 1);
}

BOOST_AUTO_TEST_CASE(gathers_that_nobody_waits_for_make_room_and_others_are_limited) {
  constexpr int limit = 256;
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  for (int i = 0; i < 3 * limit; ++i) {
    const std::string name = "quit " + std::to_string(i);
    job.send(one, wire::Gather{1, name, Bytes(1 << 20)});
    job.send(one, wire::GatherQuit{name});
  }
  for (int i = 0; i < limit; ++i) job.send(one, wire::Gather{1, std::to_string(i), {}});
  check_too_much(job, one, wire::Gather{1, "more", {}});
  job.send(zero, wire::Gather{1, "0", {}});
  BOOST_TEST(job.last<wire::Gathered>(zero).values.size() == 2U);
  job.send(one, wire::Gather{1, "more", {}});
}

BOOST_AUTO_TEST_CASE(values_that_do_not_fit_one_message_are_refused_to_all) {
  Job job(4);
  std::vector<Rendezvous::ClientId> ids;
  for (int rank = 0; rank < 4; ++rank) ids.push_back(job.join(rank));
  job.send(ids[0], wire::Gather{7, "all", Bytes(wire::max_message_bytes / 2)});
  job.send(ids[3], wire::Gather{8, "all", {}});
  job.send(ids[3], wire::GatherQuit{"all"});  // quits the gather: receives no further messages of it
  const std::size_t heard = job.clients.at(ids[3]).messages;
  check_refused(job, ids[1], wire::Gather{9, "all", Bytes(wire::max_message_bytes / 2)});
  const auto failure = job.last<wire::Failure>(ids[0]);
  BOOST_TEST(failure.request == 7U);
  BOOST_TEST((failure.code == ErrorCode::invalid_argument));
  BOOST_TEST(failure.message.find("'all'") != std::string::npos);
  BOOST_TEST(failure.message.find("member 1") != std::string::npos);
  BOOST_TEST(job.clients.at(ids[3]).messages == heard);
  check_refused(job, ids[2], wire::Gather{1, "all", {}});  // contributes last
  // Then the gather is complete.
  for (const auto id : ids) job.send(id, wire::Gather{10, "all", {}});
  for (const auto id : ids) BOOST_TEST(job.last<wire::Gathered>(id).values.size() == 4U);
}

// --- attempts ---

BOOST_AUTO_TEST_CASE(those_that_join_learn_how_old_the_session_is) {
  Job job(3);
  const auto zero = job.join(0);
  BOOST_TEST(job.last<wire::Joined>(zero).age_ns == 0U);
  job.pass(5s);
  const auto one = job.join(1);
  BOOST_TEST(job.last<wire::Joined>(one).age_ns == 5'000'000'000U);
  job.close(one, false);
  job.pass(1h);
  const auto other = job.join(1);
  BOOST_TEST(job.last<wire::Joined>(other).age_ns == 3'605'000'000'000U);
}

BOOST_AUTO_TEST_CASE(an_attempt_that_a_member_raises_goes_to_all_and_to_those_that_join_later) {
  Job job(3);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  BOOST_TEST(job.last<wire::Joined>(one).attempt == 0U);
  job.send(one, wire::AttemptRaised{4});
  for (const auto id : {zero, one}) BOOST_TEST(job.last<wire::AttemptRaised>(id).attempt == 4U);
  const std::size_t before = job.clients.at(zero).messages;
  job.send(zero, wire::AttemptRaised{4});
  job.send(zero, wire::AttemptRaised{3});
  BOOST_TEST(job.clients.at(zero).messages == before);
  const auto two = job.join(2);
  BOOST_TEST((job.last<wire::Joined>(two) == wire::Joined{1, 2, 3, 77, 4}));
  const auto guest = job.join(wire::no_member);
  check_refused(job, guest, wire::AttemptRaised{9});
  BOOST_TEST(Rendezvous::is_notice(wire::AttemptRaised{}));
}

// --- guests ---

BOOST_AUTO_TEST_CASE(a_guest_gets_the_first_free_number_beyond_the_members) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(wire::no_member);
  const auto two = job.join(wire::no_member);
  BOOST_TEST((job.last<wire::Joined>(one) == wire::Joined{1, 2, 2, 77}));
  BOOST_TEST((job.last<wire::Joined>(two) == wire::Joined{1, 3, 2, 77}));
  job.close(one, true);
  const auto three = job.join(wire::no_member);
  BOOST_TEST((job.last<wire::Joined>(three) == wire::Joined{2, 2, 2, 77}));
  job.send(zero, wire::Watch{"state"});
  job.send(three, wire::Publish{
                      "state", {.member = 2, .origin = 5, .layout_rank = 7, .step = 4, .generation = 1, .attempt = 3}});
  const auto published = job.clients.at(zero).directory.publications("state");
  BOOST_REQUIRE(published.size() == 1U);
  BOOST_TEST(published[0].member == 2);
  BOOST_TEST(published[0].origin == 5U);
  BOOST_TEST(published[0].attempt == 3U);
  BOOST_TEST(published[0].layout_rank == 7);
  check_refused(job, three, wire::Publish{"state", {.member = 1, .generation = 1}});
}

BOOST_AUTO_TEST_CASE(nobody_waits_for_a_guest_nor_misses_one_that_is_lost) {
  Job job(2);
  const auto zero = job.join(0);
  const auto one = job.join(1);
  const auto guest = job.join(wire::no_member);
  check_refused(job, guest, wire::Gather{1, "all", {}});
  check_refused(job, guest, given_up(1));
  job.send(zero, wire::Gather{1, "all", {}});
  job.close(guest, false);
  job.send(one, wire::Gather{1, "all", {}});
  BOOST_TEST(job.last<wire::Gathered>(zero).values.size() == 2U);
  const Directory& known = job.clients.at(zero).directory;
  BOOST_TEST((known.presence(2) == wire::Presence::lost));
  BOOST_TEST(known.losses() == 0U);
}

BOOST_AUTO_TEST_SUITE_END()
