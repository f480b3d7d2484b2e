// SPDX-License-Identifier: Apache-2.0
// A member that is lost in an exchange ends it for all soon, unless the others have all they want without it.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "session/exchange_loss.hpp"
#include "session/hang.hpp"
#include "support/deadline.hpp"

BOOST_AUTO_TEST_SUITE(exchange_loss)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using WallClock = std::chrono::steady_clock;

namespace {

constexpr int members = 3;
constexpr auto soon = 20s;  // well before any deadline
const Rank victim{2};

// Member 0 is this process, the others have their own.
class Job {
 public:
  Job() {
    for (int member = 1; member < members; ++member) peers_.push_back(start(member));
    session_.emplace(Session::join(member(0, members, port_), quick()));
    for (const auto& peer : peers_) read_frame(peer->socket());
  }

  /// Begins the exchange on all members, or on those that are left.
  void begin(const Swap& swap, bool with_victim = true) {
    write_frame(peers_[0]->socket(), bytes_of(swap));
    if (with_victim) write_frame(peers_[1]->socket(), bytes_of(swap));
    own_ = std::make_unique<SwappingMember>(*session_, swap);
    exchange_ = own_->start(*session_);
    began_ = WallClock::now();
  }
  /// Begins the exchange, and waits until this member has received at least so many bytes. On a busy machine it may have
  /// ended by then, and begins again with twice the time.
  void begin_and_await(Swap& swap, ByteCount bytes) {
    begin(swap);
    while (!has_come_to(bytes)) {
      for (const Outcome& outcome : outcomes(true)) {
        BOOST_TEST_REQUIRE((outcome.good || outcome.code == ErrorCode::timed_out), outcome.text);
      }
      BOOST_TEST_REQUIRE(swap.deadline_seconds < 1000);
      swap.deadline_seconds *= 2;
      begin(swap);
    }
  }
  /// Outcomes of members 0 and 1, and of the victim if it is alive.
  std::vector<Outcome> outcomes(bool of_victim = false) {
    std::vector<Outcome> all{own_->outcome_of([&] { exchange_.wait(); })};
    const auto took = WallClock::now() - began_;
    BOOST_TEST_MESSAGE("member 0 after " << std::chrono::duration<double>(took).count() << " s: " << all[0].text);
    all.push_back(outcome_from(read_frame(peers_[0]->socket())));
    if (of_victim) all.push_back(outcome_from(read_frame(peers_[1]->socket())));
    return all;
  }
  [[nodiscard]] Child& victim_process() { return *peers_[1]; }
  /// Another process takes its place.
  void replace_victim() {
    peers_[1]->reap();
    peers_[1] = start(to_int(victim));
    read_frame(peers_[1]->socket());
  }
  void require_good(const Swap& swap) {
    begin(swap);
    for (const Outcome& outcome : outcomes(true)) BOOST_TEST(outcome.good, outcome.text);
  }
  [[nodiscard]] WallClock::duration since_began() const { return WallClock::now() - began_; }

 private:
  // Waits for that. False: the exchange has ended.
  bool has_come_to(ByteCount bytes) {
    auto done = std::make_shared<std::atomic<ByteCount>>(0);
    exchange_.on_progress([done](const Progress& progress) { *done = progress.done_bytes; }, 1ms);
    while (*done < bytes && !exchange_.poll()) std::this_thread::sleep_for(1ms);
    return !exchange_.poll();
  }
  [[nodiscard]] std::unique_ptr<Child> start(int member) const {
    return std::make_unique<Child>(peer_arguments("swapping " + std::to_string(member), port_, members));
  }

  std::uint16_t port_ = free_port();
  std::vector<std::unique_ptr<Child>> peers_;
  std::optional<Session> session_;
  std::unique_ptr<SwappingMember> own_;
  Exchange exchange_;
  WallClock::time_point began_;
};

void check_lost(const Outcome& outcome, bool in_the_middle) {
  BOOST_TEST(!outcome.good);
  BOOST_TEST((outcome.code == ErrorCode::peer_lost), outcome.text);
  BOOST_TEST((outcome.ranks == std::vector<Rank>{victim}), outcome.text);
  BOOST_TEST((outcome.text.find("member 2") != std::string::npos), outcome.text);
  BOOST_TEST((outcome.gaps > 0) == in_the_middle, outcome.text);
}

// At this rate, a wave of the large tensor takes a minute: no exchange ends before its member is killed.
constexpr ByteCount crawl = 32 << 10;
constexpr ByteCount small = 48 << 10;
constexpr ByteCount large = 6 << 20;

// The large tensor goes in that wave.
Swap in_two_waves(int wave) {
  return {.first_bytes = wave == 0 ? large : small, .second_bytes = wave == 0 ? small : large};
}
// Bytes of one member that arrive in earlier waves.
ByteCount bytes_before(const Swap& swap, int wave) {
  return wave == 0 ? 0 : swap.first_bytes / members;
}

}  // namespace

// Member 1 reads from the victim; member 0 reads from member 1, slowly, and has to be told.
BOOST_DATA_TEST_CASE(a_member_that_is_killed_in_a_wave_ends_the_exchange_on_all_soon_until_it_is_replaced,
                     boost::unit_test::data::make({0, 1}), wave) {
  const Deadline deadline(400s);
  Job job;
  for (int round = 0; round < 2; ++round) {
    Swap swap = in_two_waves(wave);
    job.require_good(swap);
    swap.bytes_per_second = crawl;
    job.begin_and_await(swap, bytes_before(swap, wave) + 1);
    const auto killed = WallClock::now();
    kill_and_await(job.victim_process());
    for (const Outcome& outcome : job.outcomes()) check_lost(outcome, true);
    BOOST_TEST((WallClock::now() - killed < soon));
    // Without the member, no exchange begins.
    job.begin(swap, false);
    for (const Outcome& outcome : job.outcomes()) check_lost(outcome, false);
    BOOST_TEST((job.since_began() < soon));
    job.replace_victim();
    swap.bytes_per_second = 0;
    for (int again = 0; again < 2; ++again) job.require_good(swap);
  }
}

// Members go on reading memory of a dead process that they map.
BOOST_AUTO_TEST_CASE(
    members_that_map_what_a_killed_one_held_complete_the_exchange,
    *boost::unit_test::precondition([](boost::unit_test::test_unit_id) -> boost::test_tools::assertion_result {
      return maps_arenas();
    })) {
  const Deadline deadline(400s);
  Job job;
  Swap swap{.first_bytes = 96 << 10, .second_bytes = 3 << 20, .in_arena = true, .apart = true};
  job.require_good(swap);
  swap.bytes_per_second = 512 << 10;
  job.begin_and_await(swap, 1);
  kill_and_await(job.victim_process());
  for (const Outcome& outcome : job.outcomes()) BOOST_TEST(outcome.good, outcome.text);
  job.replace_victim();
  swap.bytes_per_second = 0;
  job.require_good(swap);
}

// Every tensor is held by all members: the other holders deliver what the killed one has not.
BOOST_DATA_TEST_CASE(what_a_killed_member_has_not_delivered_comes_from_other_holders,
                     boost::unit_test::data::make({false, true}), in_arena) {
  const Deadline deadline(400s);
  Job job;
  Swap swap{.first_bytes = 96 << 10, .second_bytes = 3 << 20, .in_arena = in_arena, .apart = true, .replicated = true};
  job.require_good(swap);
  swap.bytes_per_second = 1 << 20;
  job.begin_and_await(swap, 1);
  kill_and_await(job.victim_process());
  for (const Outcome& outcome : job.outcomes()) BOOST_TEST(outcome.good, outcome.text);
  job.replace_victim();
  swap.bytes_per_second = 0;
  job.require_good(swap);
}

// It may go on at any time, so that the others wait for it until their deadline.
BOOST_DATA_TEST_CASE(a_member_that_is_stopped_in_a_wave_ends_the_exchange_on_all_at_the_deadline,
                     boost::unit_test::data::make({0, 1}), wave) {
  const Deadline deadline(400s);
  Job job;
  Swap swap = in_two_waves(wave);
  job.require_good(swap);
  swap.bytes_per_second = crawl;
  swap.deadline_seconds = 5;
  job.begin_and_await(swap, bytes_before(swap, wave) + 1);
  freeze_and_await(job.victim_process());
  for (const Outcome& outcome : job.outcomes()) {
    BOOST_TEST((outcome.code == ErrorCode::timed_out), outcome.text);
  }
  BOOST_TEST((job.since_began() < std::chrono::seconds(swap.deadline_seconds) + soon));
  ::kill(job.victim_process().pid(), SIGCONT);
  const Outcome woken = outcome_from(read_frame(job.victim_process().socket()));
  BOOST_TEST((woken.code == ErrorCode::timed_out), woken.text);
  swap.bytes_per_second = 0;
  swap.deadline_seconds = 60;
  job.require_good(swap);
}

BOOST_AUTO_TEST_SUITE_END()
