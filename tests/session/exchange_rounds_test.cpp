// SPDX-License-Identifier: Apache-2.0
#include "session/exchange/rounds.hpp"

#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

#include "support/deadline.hpp"
#include "support/job.hpp"

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using Clock = ExchangeRounds::Clock;

namespace {

wire::ExchangeNote offering(std::vector<std::string> collectives) {
  wire::ExchangeNote note;
  note.collectives = std::move(collectives);
  return note;
}

/// Two members, of which each sends the other one 1000 bytes.
struct Couple {
  Couple() {
    const transport::CollectiveTransport& loopback =
        agreed_collective(std::vector{offering(offered_collectives()), offering(offered_collectives())});
    const Bytes id = loopback.make_id();
    for (int member = 0; member < 2; ++member) {
      members[static_cast<std::size_t>(member)].emplace(loopback, id, member, 2);
    }
  }
  move::GroupedJob job(int member) {
    const Box box = Box::whole({1000});
    std::vector<wire::ExchangeNote> notes(2);
    notes[0].requests = {{1, 0, box, 1000, 1000, 1}};
    notes[1].requests = {{0, 0, box, 1000, 1000, 1}};
    const auto own = static_cast<std::size_t>(member);
    const std::vector<move::GroupedPiece> incoming{{box, memory::packed(box), 1, in[own].data()}};
    return grouped_job(notes, member, 100, incoming, [&](const wire::ExchangeRequest&) {
      return move::GroupedPiece{box, memory::packed(box), 1, out[own].data()};
    });
  }
  ExchangeRounds::Totals run(int member, const std::function<bool()>& stopped, Clock::duration within) {
    return members[static_cast<std::size_t>(member)]->run(job(member), stopped, Clock::now() + within);
  }

  std::array<Bytes, 2> out{Bytes(1000, std::byte{1}), Bytes(1000, std::byte{2})};
  std::array<Bytes, 2> in{Bytes(1000), Bytes(1000)};
  std::array<std::optional<ExchangeRounds>, 2> members;
};

bool never() {
  return false;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(exchange_rounds)

BOOST_AUTO_TEST_CASE(members_of_other_processes_have_no_collective_of_threads) {
  const auto here = offered_collectives();
  BOOST_REQUIRE(!here.empty());
  BOOST_CHECK_NO_THROW(agreed_collective(std::vector{offering(here), offering(here)}));
  for (const auto& other : {std::vector<std::string>{"loopback (process 1)"}, std::vector<std::string>{}}) {
    BOOST_CHECK_EXCEPTION(agreed_collective(std::vector{offering(here), offering(other)}), Error, [](const Error& e) {
      return e.code() == ErrorCode::unsupported && says(e, "member 1 offers");
    });
  }
}

BOOST_AUTO_TEST_CASE(both_get_what_they_asked_for) {
  const Deadline deadline(30s);
  Couple couple;
  ExchangeRounds::Totals other;
  std::thread peer([&] { other = couple.run(1, never, 20s); });
  const ExchangeRounds::Totals totals = couple.run(0, never, 20s);
  peer.join();
  BOOST_TEST((couple.in[0] == couple.out[1]));
  BOOST_TEST((couple.in[1] == couple.out[0]));
  BOOST_TEST(totals.rounds == 20);  // 50 bytes each way
  BOOST_TEST(other.rounds == 20);
  BOOST_TEST(totals.staging_bytes == 100);
}

BOOST_AUTO_TEST_CASE(who_waits_for_a_member_that_hangs_ends_at_the_deadline) {
  const Deadline deadline(30s);
  Couple couple;
  const auto began = Clock::now();
  BOOST_CHECK_EXCEPTION(couple.run(0, never, 100ms), Error,
                        [](const Error& e) { return e.code() == ErrorCode::timed_out; });
  BOOST_TEST((Clock::now() - began < 2s));
  // And who comes later finds the group given up.
  BOOST_CHECK_EXCEPTION(couple.run(1, never, 20s), GroupFailed,
                        [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
}

BOOST_AUTO_TEST_CASE(who_is_stopped_ends_the_rounds_of_the_other_one) {
  const Deadline deadline(30s);
  Couple couple;
  std::optional<Error> stopped;  // Boost's checks are for one thread
  std::thread peer([&] {
    try {
      couple.run(
          1, [] { return true; }, 20s);
    } catch (const Error& error) {
      stopped = error;
    }
  });
  const Error error = failure_of([&] { couple.run(0, never, 20s); });
  peer.join();
  BOOST_TEST((error.code() == ErrorCode::peer_lost));
  BOOST_TEST((stopped && stopped->code() == ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(who_gives_up_before_the_rounds_ends_those_of_the_other_one) {
  const Deadline deadline(30s);
  Couple couple;
  couple.members[1]->give_up();
  BOOST_CHECK_EXCEPTION(couple.run(0, never, 20s), GroupFailed,
                        [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
}

// Where it plans, and where it packs. It knows why, and the other one has to ask.
BOOST_AUTO_TEST_CASE(what_goes_wrong_on_one_member_ends_the_rounds_of_the_other_one) {
  const Deadline deadline(30s);
  for (const bool in_plan : {true, false}) {
    Couple couple;
    std::string outcome = "nothing went wrong";
    bool own = false;
    std::thread peer([&] {
      move::GroupedJob job = couple.job(1);
      if (in_plan) {
        job.limits.staging_bytes = 0;
      } else {
        job.outgoing.clear();
      }
      try {
        couple.members[1]->run(std::move(job), never, Clock::now() + 20s);
      } catch (const GroupFailed& error) {
        outcome = error.what();
      } catch (const std::exception& error) {
        own = true;
        outcome = error.what();
      }
    });
    const auto began = Clock::now();
    BOOST_CHECK_EXCEPTION(couple.run(0, never, 20s), GroupFailed,
                          [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
    peer.join();
    BOOST_TEST(own, outcome);
    BOOST_TEST((Clock::now() - began < 5s));
  }
}

BOOST_AUTO_TEST_CASE(requests_of_members_that_there_are_not_are_refused) {
  const Box box = Box::whole({4});
  for (const std::uint32_t source : {0u, 2u, 77u}) {
    std::vector<wire::ExchangeNote> notes(2);
    notes[0].requests = {{source, 0, box, 4, 4, 1}};
    BOOST_CHECK_EXCEPTION(grouped_job(notes, 1, 100, {}, {}), Error,
                          [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  }
}

BOOST_AUTO_TEST_SUITE_END()
