// SPDX-License-Identifier: Apache-2.0
// Who serves the rendezvous: votes and electorates, also between many processes
// that die, join and are cut off from each other.
#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "control/election.hpp"
#include "support/random_layout.hpp"
#include "support/sanitizer.hpp"
#include "support/seed.hpp"

BOOST_AUTO_TEST_SUITE(election)

using namespace shardwire;
using test::pick;
using test::Random;

namespace {

std::vector<Voter> voters(std::initializer_list<int> members) {
  std::vector<Voter> list;
  for (const int member : members) list.push_back({member, 7});
  return list;
}

std::set<Voter> those(std::initializer_list<int> members) {
  const auto list = voters(members);
  return {list.begin(), list.end()};
}

Electorate settled(std::uint64_t number, std::vector<Voter> of) {
  return {{number, of.front().member}, 1, std::move(of), {}};
}

}  // namespace

BOOST_AUTO_TEST_CASE(more_than_half_decide_and_one_of_two) {
  BOOST_TEST(settled(1, voters({0})).decide(those({0})));
  BOOST_TEST(!settled(1, voters({0})).decide(those({1})));
  BOOST_TEST(settled(1, voters({0, 1})).decide(those({1})));
  BOOST_TEST(!settled(1, voters({0, 1, 2})).decide(those({1})));
  BOOST_TEST(settled(1, voters({0, 1, 2})).decide(those({1, 2})));
  BOOST_TEST(!settled(1, voters({0, 1, 2, 3})).decide(those({1, 2})));
  BOOST_TEST(!settled(1, voters({0, 1, 2, 3, 4, 5, 6, 7})).decide(those({4, 5, 6, 7, 8, 9})));
  const Electorate step{{1, 0}, 2, voters({0, 1, 2}), voters({0, 1})};
  BOOST_TEST(!step.decide(those({1, 2})));  // one of two is not enough while a third one is being taken in
  BOOST_TEST(!step.decide(those({0})));
  BOOST_TEST(step.decide(those({0, 1})));
}

BOOST_AUTO_TEST_CASE(a_voter_has_one_vote_in_a_number_and_none_in_one_that_is_over) {
  Promise promise;
  promise.heard_of(3);
  BOOST_TEST(!promise.give(3, {1, 7}));
  BOOST_TEST(promise.give(4, {1, 7}));
  BOOST_TEST(promise.give(4, {1, 7}));
  BOOST_TEST(!promise.give(4, {1, 8}));  // another process under that number
  BOOST_TEST(promise.give(6, {2, 7}));
  BOOST_TEST(!promise.give(5, {1, 7}));
  promise.heard_of(6);
  BOOST_TEST(!promise.give(6, {2, 7}));  // who has served in a number does not serve in it again
  promise.heard_of(7);
  BOOST_TEST(!promise.give(7, {2, 7}));
}

BOOST_AUTO_TEST_CASE(votes_of_different_numbers_do_not_add_up) {
  const Electorate of_three = settled(1, voters({0, 1, 2}));
  Candidacy candidacy;
  BOOST_TEST(!candidacy.take({2, {1, 7}, of_three}));
  BOOST_TEST(!candidacy.won().has_value());
  BOOST_TEST(candidacy.take({3, {2, 7}, of_three}));
  BOOST_TEST(!candidacy.won().has_value());
  BOOST_TEST((candidacy.outdated() == voters({1})));
  BOOST_TEST(!candidacy.take({3, {1, 7}, of_three}));
  BOOST_TEST(candidacy.number() == 3U);
  BOOST_REQUIRE(candidacy.won().has_value());
  // The newest electorate that any voter knows decides.
  Candidacy other;
  other.take({2, {1, 7}, of_three});
  other.take({2, {2, 7}, settled(1, voters({0, 1, 2}))});
  Electorate later{{1, 0}, 2, voters({0, 1, 2, 3, 4, 5}), voters({0, 1, 2})};
  other.take({2, {0, 7}, later});
  BOOST_TEST(!other.won().has_value());
}

BOOST_AUTO_TEST_CASE(an_electorate_changes_by_settled_steps) {
  ServedElectorate served({0, 7});
  BOOST_TEST(served.has_quorum());
  BOOST_TEST(served.set_present(voters({1, 2})));
  BOOST_TEST((served.now().before == voters({0})));
  BOOST_TEST(!served.set_present(voters({1, 2, 3, 4})));  // not before that one is settled
  BOOST_TEST(!served.acknowledged({1, 7}, served.now().version - 1));
  BOOST_TEST(served.acknowledged({1, 7}, served.now().version));
  BOOST_TEST((served.now().before == voters({0, 1, 2})));
  BOOST_TEST((served.now().voters == voters({0, 1, 2, 3, 4})));
  BOOST_TEST(!served.acknowledged({3, 7}, served.now().version));
  BOOST_TEST(served.acknowledged({2, 7}, served.now().version));
  BOOST_TEST(served.now().before.empty());
  // Three are gone at once: those who are left do not decide, and nothing
  // changes.
  BOOST_TEST(!served.set_present(voters({4})));
  BOOST_TEST(!served.has_quorum());
  BOOST_TEST(served.now().voters.size() == 5U);
  BOOST_TEST(served.set_present(voters({4, 3})));
  BOOST_TEST(served.has_quorum());
}

// --- many processes ---

namespace {

/// A job whose processes elect who serves, over a network that delays, cuts and
/// heals.
class Job {
 public:
  Job(std::uint64_t seed, int members) : random_(seed) {
    std::vector<Voter> all;
    for (int member = 0; member < members; ++member) all.push_back({member, 1});
    for (const Voter& voter : all) {
      Process& process = start(voter);
      process.newest = settled(1, all);
      process.promise.heard_of(1);
      process.server = all.front();
    }
    Process& first = at(0);
    first.served = std::make_unique<ServedElectorate>(first.self, 1, first.newest);
    first.served->set_present({all.begin() + 1, all.end()});
    note_server(first);
  }

  void run(int faults) {
    for (int i = 0; i < faults; ++i) {
      later(pick(random_, 0, 3000), [this] { fault(); });
    }
    while (step(3000)) {
    }
    groups_.clear();  // all see each other from now on
    sees_all();
    while (step(now_limit())) {
    }
  }

  /// By number of the term: who has served it. Two: a failure.
  std::map<std::uint64_t, std::set<Voter>> servers;
  int terms = 0;
  [[nodiscard]] bool had_pairs() const { return had_pairs_; }

  /// Those that are alive decide in the newest electorate, and have to follow
  /// one of them.
  [[nodiscard]] bool decides() const {
    const Electorate* newest = nullptr;
    std::set<Voter> alive;
    for (const auto& [member, process] : processes_) {
      if (newest == nullptr || process->newest.is_newer_than(*newest)) newest = &process->newest;
      alive.insert(process->self);
    }
    return newest != nullptr && newest->decide(alive);
  }
  [[nodiscard]] std::string outcome() const {
    std::set<Voter> serving;
    for (const auto& [member, process] : processes_) {
      if (process->served && process->served->has_quorum()) serving.insert(process->self);
    }
    if (serving.empty()) return "nobody serves";
    if (serving.size() > 1) return "several serve";
    for (const auto& [member, process] : processes_) {
      if (process->server != *serving.begin()) return "a process follows nobody, or another one";
    }
    return "one serves";
  }

  [[nodiscard]] std::string describe() const {
    std::string text;
    for (const auto& [member, process] : processes_) {
      text += fmt::format(
          "\n  member {}: promised {}, knows {}.{} of {} and "
          "{} voters, follows {}{}",
          member, process->promise.number(), process->newest.term.number, process->newest.version,
          process->newest.voters.size(), process->newest.before.size(), process->server ? process->server->member : -1,
          process->served ? ", serves" : "");
    }
    return text;
  }

 private:
  struct Process {
    Voter self;
    Electorate newest{};
    Promise promise{};
    std::optional<Voter> server{};
    Candidacy candidacy{};
    std::set<Voter> clients{};
    std::unique_ptr<ServedElectorate> served{};
    std::uint64_t promised_by_others = 0;
    int patient_until = 0;    // it has voted for one that serves already
    std::set<Voter> ahead{};  // who believe only a later term than the one that is served here
  };

  static constexpr int patience = 100;
  static constexpr int silence = 40;  // until a process that cannot be reached counts as lost
  [[nodiscard]] int now_limit() const { return 3000 + 4000; }

  Process& at(int member) { return *processes_.at(member); }
  Process* alive(const Voter& voter) {
    const auto found = processes_.find(voter.member);
    return found == processes_.end() || found->second->self != voter ? nullptr : found->second.get();
  }
  Process& start(const Voter& self) {
    auto& process = processes_[self.member];
    process = std::make_unique<Process>(Process{.self = self});
    later(pick(random_, 1, 30), [this, self] { tick(self); });
    return *process;
  }

  // --- time and network ---

  void later(int delay, std::function<void()> what) {
    events_.emplace(std::pair(now_ + delay, next_++), std::move(what));
  }
  bool step(int until) {
    if (events_.empty() || events_.begin()->first.first > until) {
      now_ = until;
      return false;
    }
    auto event = events_.extract(events_.begin());
    now_ = event.key().first;
    event.mapped()();
    return true;
  }
  [[nodiscard]] bool connected(const Voter& a, const Voter& b) {
    return alive(a) != nullptr && alive(b) != nullptr && group(a.member) == group(b.member);
  }
  [[nodiscard]] int group(int member) const {
    const auto found = groups_.find(member);
    return found == groups_.end() ? 0 : found->second;
  }
  // Messages may overtake each other, and are lost if their receiver cannot be
  // reached when they arrive.
  void send(const Voter& from, const Voter& to, std::function<void(Process&)> receive) {
    later(pick(random_, 1, 8), [this, from, to, receive = std::move(receive)] {
      if (connected(from, to)) receive(*alive(to));
    });
  }

  // --- faults ---

  void fault() {
    switch (pick(random_, 0, 5)) {
      case 0: return kill(pick(random_, 0, 1) == 0 ? server_now() : pick(random_, 0, 8));
      case 1:
        for (int member = 0; member < 9; ++member) groups_[member] = pick(random_, 0, 2) == 0 ? 1 : 0;
        return sees_all();
      case 2: groups_.clear(); return sees_all();
      case 3: {  // a new process, also under a number that was free
        const int member = pick(random_, 0, 8);
        if (!processes_.contains(member)) start({member, ++incarnation_});
        return;
      }
      case 4: return kill(pick(random_, 0, 8));
      default: {  // one is cut off alone
        groups_.clear();
        groups_[pick(random_, 0, 1) == 0 ? server_now() : pick(random_, 0, 8)] = 1;
        return sees_all();
      }
    }
  }
  int server_now() {
    for (const auto& [member, process] : processes_) {
      if (process->served) return member;
    }
    return 0;
  }
  void kill(int member) {
    if (processes_.size() > 1) processes_.erase(member);
    sees_all();
  }
  // Everybody notices in the end, each at another time.
  void sees_all() {
    for (const auto& [member, process] : processes_) {
      later(pick(random_, 1, silence), [this, self = process->self] { look_around(self); });
    }
  }
  void look_around(const Voter& self) {
    Process* const process = alive(self);
    if (process == nullptr) return;
    if (process->server && *process->server != self && !connected(self, *process->server)) process->server.reset();
    for (const auto& list : {process->candidacy.supporters(), process->candidacy.outdated()}) {
      for (const Voter& voter : list) {
        if (!connected(self, voter)) process->candidacy.forget(voter);
      }
    }
    std::erase_if(process->clients, [&](const Voter& client) { return !connected(self, client); });
    present(*process);
  }

  // --- what a process does ---

  // From time to time: a process without a server votes for the first one of
  // the electorate that it reaches.
  void tick(const Voter& self) {
    Process* const process = alive(self);
    if (process == nullptr) return;
    later(pick(random_, 20, 30), [this, self] { tick(self); });
    if (process->server && *process->server != self && connected(self, *process->server)) {
      const Process& server = *alive(*process->server);
      if (!server.served || !server.clients.contains(self)) process->server.reset();  // the connection has ended
    }
    if (process->served) renew_if_needed(*process);
    for (const Voter& voter : process->candidacy.outdated()) ask_for_vote(*process, voter);
    if (process->served) return look_for_others(*process);
    if (process->server) return;
    if (process->newest.voters.empty()) return ask_to_join(*process);
    std::vector<Voter> others = process->newest.voters;  // one of them may have found who serves
    others.insert(others.end(), process->newest.before.begin(), process->newest.before.end());
    std::erase_if(others, [&](const Voter& voter) { return voter == self || !connected(self, voter); });
    if (others.empty()) ask_to_join(*process);  // at the address of the job
    std::ranges::shuffle(others, random_);
    if (!others.empty()) {
      send(self, others[0], [this, self, newest = process->newest](Process& other) {
        if (other.server) return redirect(other, self);
        learn(other, newest);
        send(other.self, self, [this, known = other.newest](Process& asking) { learn(asking, known); });
      });
    }
    if (now_ < process->patient_until) return;
    if (const auto candidate = choice(*process)) vote(*process, *candidate, 0);
  }
  // Who know the same electorate make the same choice.
  void learn(Process& process, const Electorate& electorate) {
    if (!process.server && electorate.is_newer_than(process.newest)) process.newest = electorate;
  }
  std::optional<Voter> choice(const Process& process) {
    for (const Voter& candidate : process.newest.voters) {
      if (connected(process.self, candidate)) return candidate;
    }
    return std::nullopt;
  }
  // After two voters have parted, each serves alone.
  void look_for_others(Process& process) {
    auto other = processes_.begin();
    std::advance(other, pick(random_, 0, static_cast<int>(processes_.size()) - 1));
    if (connected(process.self, other->second->self)) announce(process, other->second->self);
  }
  void ask_to_join(Process& process) {
    for (const auto& [member, other] : processes_) {
      if (!other->served || !connected(process.self, other->self)) continue;
      return ask_to_join(process, other->self);
    }
  }
  void ask_to_join(const Process& process, const Voter& server) {
    send(process.self, server,
         [this, from = process.self, number = process.promise.number(), term = process.newest.term](Process& other) {
           if (!other.served) return;
           serve(other, from, term > other.served->now().term ? std::max(number, term.number + 1) : number);
         });
  }
  void vote(Process& process, const Voter& candidate, std::uint64_t at_least) {
    const std::uint64_t number = std::max(at_least, process.promise.next(candidate));
    process.promise.give(number, candidate);
    const Vote vote{number, process.self, process.newest};
    send(process.self, candidate, [this, vote](Process& other) { take(other, vote); });
  }
  void take(Process& process, const Vote& vote) {
    if (process.served && vote.number <= process.served->now().term.number)
      return serve(process, vote.from, vote.number);
    if (process.server && *process.server != process.self) return redirect(process, vote.from);
    collect(process, vote);
  }
  void redirect(const Process& process, const Voter& asking) {
    send(process.self, asking, [this, server = *process.server](Process& other) {
      if (!other.server) ask_to_join(other, server);
    });
  }
  void collect(Process& process, const Vote& vote) {
    process.candidacy.take(vote);
    if (vote.from != process.self && process.promise.number() < process.candidacy.number()) {
      this->vote(process, process.self, process.candidacy.number());
    }
    const auto won = process.candidacy.won();
    if (!won) return;
    const std::uint64_t number = process.candidacy.number();
    for (const Voter& voter : process.candidacy.supporters()) {
      if (voter != process.self && connected(process.self, voter)) process.clients.insert(voter);
    }
    process.candidacy = {};
    process.served = std::make_unique<ServedElectorate>(process.self, number, *won);
    process.promise.heard_of(number);
    process.server = process.self;
    note_server(process);
    present(process);
    // All that it reaches hear of it.
    for (const auto& [member, other] : processes_) {
      if (process.served) announce(process, other->self);
    }
  }
  void ask_for_vote(const Process& process, const Voter& voter) {
    send(process.self, voter, [this, candidate = process.self, number = process.candidacy.number()](Process& other) {
      if (other.server ? other.server == candidate : choice(other) == candidate) this->vote(other, candidate, number);
    });
  }
  void serve(Process& server, const Voter& client, std::uint64_t promised) {
    if (promised > server.served->now().term.number) {
      server.promised_by_others = std::max(server.promised_by_others, promised);
      server.ahead.insert(client);
      return;
    }
    server.clients.insert(client);
    present(server);
    if (server.served) announce(server, client);
  }
  // One that has voted in a later number believes no earlier term: who serves
  // goes on in a later one.
  void renew_if_needed(Process& server) {
    const std::uint64_t number = server.served->now().term.number;
    if (server.promise.number() <= number && server.promised_by_others <= number) return;
    vote(server, server.self, std::max(server.promised_by_others, number + 1));  // again the same, once it has voted
    std::set<Voter> asked = server.clients;
    asked.merge(std::exchange(server.ahead, {}));
    for (const Voter& voter : asked) {
      send(server.self, voter, [this, candidate = server.self, number = server.promise.number()](Process& other) {
        if (other.server && other.server != candidate) return;
        other.patient_until = now_ + patience;
        this->vote(other, candidate, number);
      });
    }
  }
  void present(Process& process) {
    if (!process.served) return;
    if (process.served->set_present({process.clients.begin(), process.clients.end()})) tell(process);
    if (process.served->has_quorum()) return;
    process.newest = process.served->now();
    process.server.reset();
    end_service(process);  // there may be another one
  }
  void end_service(Process& process) {
    process.served.reset();
    for (const Voter& client : std::exchange(process.clients, {})) {
      send(process.self, client, [from = process.self](Process& other) {
        if (other.server == from) other.server.reset();
      });
    }
  }
  void tell(Process& server) {
    had_pairs_ = had_pairs_ || server.served->now().voters.size() <= 2;
    server.newest = server.served->now();
    for (const Voter& client : server.clients) announce(server, client);
  }
  void announce(Process& server, const Voter& to) {
    send(server.self, to, [this, electorate = server.served->now(), from = server.self](Process& process) {
      hear(process, electorate, from);
    });
  }
  void hear(Process& process, const Electorate& electorate, const Voter& from) {
    if (process.self == from) return;
    if (process.served && electorate.term > process.served->now().term) {
      end_service(process);
      process.server.reset();
    }
    if (electorate.term.number < process.promise.number() || electorate.term < process.newest.term) {
      if (!process.server || process.server == from) ask_to_join(process, from);
      return;
    }
    if (process.newest.is_newer_than(electorate)) return;
    if (process.served) return;
    process.promise.heard_of(electorate.term.number);
    process.newest = electorate;
    process.server = from;
    process.candidacy = {};
    send(process.self, from,
         [this, voter = process.self, number = electorate.term.number, version = electorate.version](Process& server) {
           if (!server.served || server.served->now().term.number != number) return;
           if (server.clients.insert(voter).second) present(server);
           if (server.served && server.served->acknowledged(voter, version)) tell(server);
         });
  }
  void note_server(Process& process) {
    servers[process.served->now().term.number].insert(process.self);
    process.newest = process.served->now();
    ++terms;
  }

  Random random_;
  int now_ = 0;
  std::uint64_t next_ = 0;
  std::uint64_t incarnation_ = 1;
  std::map<std::pair<int, std::uint64_t>, std::function<void()>> events_;
  std::map<int, std::unique_ptr<Process>> processes_;
  std::map<int, int> groups_;
  bool had_pairs_ = false;
};

}  // namespace

BOOST_AUTO_TEST_CASE(never_two_serve_one_term_and_a_majority_finds_one) {
  int elected = 0;
  int quorums = 0;
  int none = 0;
  int without_pairs = 0;
  const auto first = static_cast<unsigned>(first_seed());
  for (unsigned seed = first; seed < first + test::rounds(1500U); ++seed) {
    Random random(seed);
    Job job(seed, pick(random, 3, 8));
    job.run(pick(random, 1, 12));
    elected += job.terms - 1;
    if (!job.had_pairs()) {  // one of two may go on alone while the other one does
      ++without_pairs;
      for (const auto& [number, servers] : job.servers) {
        BOOST_REQUIRE_MESSAGE(servers.size() == 1,
                              "seed " << seed << ": " << servers.size() << " serve term " << number);
      }
    }
    if (job.decides()) {
      ++quorums;
      BOOST_REQUIRE_MESSAGE(job.outcome() == "one serves", "seed " << seed << ": " << job.outcome() << job.describe());
    } else {
      ++none;
      BOOST_REQUIRE_MESSAGE(job.outcome() == "nobody serves",
                            "seed " << seed << ": " << job.outcome() << job.describe());
    }
  }
  BOOST_TEST(elected > test::rounds(500));
  BOOST_TEST(quorums > test::rounds(500));
  BOOST_TEST(none > test::rounds(10));
  BOOST_TEST(without_pairs > test::rounds(250));
}

BOOST_AUTO_TEST_SUITE_END()
