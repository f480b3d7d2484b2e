// SPDX-License-Identifier: Apache-2.0
#include "exchange/rounds.hpp"

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "exchange/made_rounds_session.hpp"
#include "restore/rounds_step.hpp"
#include "support/deadline.hpp"
#include "support/job.hpp"

BOOST_AUTO_TEST_SUITE(exchange_rounds)

using namespace shardwire;
using namespace shardwire::test;
using namespace std::chrono_literals;
using SteadyClock = std::chrono::steady_clock;

namespace {

GroupChoice both() {
  GroupChoice choice;
  choice.members = {0, 1};
  choice.devices = {memory::on_host, memory::on_host};
  return choice;
}

const transport::CollectiveTransport& loopback_of_threads() {
  const auto all = transport::registered_collectives();
  return *std::ranges::find(all, std::string_view("loopback"), &transport::CollectiveTransport::name);
}

/// Two members that send each other 1000 bytes.
struct Couple {
  Couple() {
    const transport::CollectiveTransport& loopback = loopback_of_threads();
    const Bytes id = loopback.make_id();
    for (int member = 0; member < 2; ++member) {
      members[static_cast<std::size_t>(member)].emplace(loopback,
                                                        transport::GroupSetup{.id = id, .rank = member, .size = 2});
    }
  }
  move::CollectiveJob job(int member) {
    const Box box = Box::whole({1000});
    std::vector<wire::ExchangeNote> notes(2);
    notes[0].requests = {{1, 0, box, 1000, 1000, 1}};
    notes[1].requests = {{0, 0, box, 1000, 1000, 1}};
    const auto own = static_cast<std::size_t>(member);
    const std::vector<move::CollectivePiece> incoming{{box, memory::packed(box), 1, in[own].data()}};
    return collective_job(notes, both(), member, 100, incoming, [&](const wire::ExchangeRequest&) {
      return move::CollectivePiece{box, memory::packed(box), 1, out[own].data()};
    });
  }
  ExchangeRounds::Totals run(int member, SteadyClock::duration within = 20s) {
    return run(member, job(member), within);
  }
  ExchangeRounds::Totals run(int member, move::CollectiveJob its_job, SteadyClock::duration within = 20s) {
    const auto own = static_cast<std::size_t>(member);
    return members[own]->run(std::move(its_job),
                             {.restore = steps[own],
                              .writes = true,
                              .members = {0, 1},
                              .deadline = SteadyClock::now() + within,
                              .failure_notices = [&session = sessions[own]] { return session.notices(); },
                              .give_up = [](const Error&) {}},
                             sessions[own].context());
  }

  std::array<Bytes, 2> out{Bytes(1000, std::byte{1}), Bytes(1000, std::byte{2})};
  std::array<Bytes, 2> in{Bytes(1000), Bytes(1000)};
  std::array<std::optional<ExchangeRounds>, 2> members;
  std::array<MadeRoundsSession, 2> sessions;
  std::array<std::shared_ptr<RoundsStep>, 2> steps{std::make_shared<RoundsStep>(RoundsGroup{"loopback", 0, {}}),
                                                   std::make_shared<RoundsStep>(RoundsGroup{"loopback", 1, {}})};
};

bool group_failed(const RoundsFailed& error) {
  return error.cause == RoundsFailed::Cause::others && error.code() == ErrorCode::peer_lost;
}

}  // namespace

BOOST_AUTO_TEST_CASE(both_get_what_they_asked_for) {
  const Deadline deadline(120s);
  Couple couple;
  ExchangeRounds::Totals other;
  std::thread peer([&] { other = couple.run(1); });
  const ExchangeRounds::Totals totals = couple.run(0);
  peer.join();
  BOOST_TEST((couple.in[0] == couple.out[1]));
  BOOST_TEST((couple.in[1] == couple.out[0]));
  BOOST_TEST(totals.rounds == 20);  // 50 bytes each way
  BOOST_TEST(other.rounds == 20);
  BOOST_TEST(totals.staging_bytes == 100);
  BOOST_TEST(totals.bytes == 1000);
}

BOOST_AUTO_TEST_CASE(no_more_comes_in_rounds_than_the_rate_allows) {
  const Deadline deadline(120s);
  Couple couple;
  std::thread peer([&] { couple.run(1); });
  move::CollectiveJob job = couple.job(0);
  job.ingress_bytes_per_second = 5000;
  const ExchangeRounds::Totals totals = couple.run(0, std::move(job));
  peer.join();
  BOOST_TEST((couple.in[0] == couple.out[1]));
  BOOST_TEST(totals.seconds > 0.17);  // 1000 bytes; the rate limiter may have saved up 20 ms
}

BOOST_AUTO_TEST_CASE(who_waits_for_a_member_that_hangs_ends_at_the_deadline) {
  const Deadline deadline(120s);
  Couple couple;
  const auto began = SteadyClock::now();
  BOOST_CHECK_EXCEPTION(couple.run(0, 100ms), Error, [](const Error& e) { return e.code() == ErrorCode::timed_out; });
  BOOST_TEST((SteadyClock::now() - began < promptly));
  // A member that comes later finds that the group was aborted.
  BOOST_CHECK_EXCEPTION(couple.run(1), RoundsFailed, group_failed);
}

// Before the rounds begin, and during rounds if the other member does not come.
BOOST_AUTO_TEST_CASE(a_restore_that_ends_ends_the_rounds_that_write_for_it) {
  const Deadline deadline(120s);
  for (const bool before : {true, false}) {
    Couple couple;
    std::thread stopping([&] {
      if (!before) couple.sessions[0].await_rounds();
      couple.sessions[0].loop().call([&] { couple.steps[0]->stop(); });
    });
    if (before) stopping.join();
    BOOST_CHECK_EXCEPTION(couple.run(0), RoundsFailed, [](const RoundsFailed& e) {
      return e.cause == RoundsFailed::Cause::restore && e.code() == ErrorCode::cancelled;
    });
    if (!before) stopping.join();
    BOOST_TEST(!couple.steps[0]->writing());
    BOOST_CHECK_EXCEPTION(couple.run(1), RoundsFailed, group_failed);
  }
}

BOOST_AUTO_TEST_CASE(members_that_are_gone_or_give_up_end_the_rounds_at_once) {
  const Deadline deadline(120s);
  for (const bool gone : {true, false}) {
    Couple couple;
    std::thread telling([&] {
      couple.sessions[0].await_rounds();
      couple.sessions[0].notify({{7}, false});  // not a member of the group
      couple.sessions[0].notify(gone ? FailureNotices{{1}, false} : FailureNotices{{}, true});
    });
    const auto began = SteadyClock::now();
    const Error error = failure_of([&] { couple.run(0); });
    telling.join();
    BOOST_TEST((SteadyClock::now() - began < promptly));
    BOOST_TEST((error.code() == (gone ? ErrorCode::peer_lost : ErrorCode::cancelled)), error.what());
    BOOST_TEST(says(error, gone ? "member 1 is gone" : "given the exchange up"), error.what());
  }
}

BOOST_AUTO_TEST_CASE(a_session_that_is_closed_ends_its_rounds_in_order) {
  const Deadline deadline(120s);
  Couple couple;
  std::thread closing([&] {
    couple.sessions[0].await_rounds();
    couple.sessions[0].close();
  });
  const Error error = failure_of([&] { couple.run(0); });
  closing.join();
  BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
  BOOST_TEST(!couple.steps[0]->writing());
  BOOST_CHECK_EXCEPTION(couple.run(1), RoundsFailed, group_failed);
  BOOST_CHECK_EXCEPTION(couple.run(0), Error,  // fails before it begins
                        [](const Error& e) { return e.code() == ErrorCode::invalid_argument; });
}

BOOST_AUTO_TEST_CASE(who_aborts_before_the_rounds_ends_those_of_the_other_one) {
  const Deadline deadline(120s);
  Couple couple;
  couple.members[1]->abort();
  BOOST_CHECK_EXCEPTION(couple.run(0), RoundsFailed, group_failed);
}

// During planning and during packing. The failing member knows the reason; the other one has to ask for it.
BOOST_AUTO_TEST_CASE(what_goes_wrong_on_one_member_ends_the_rounds_of_the_other_one) {
  const Deadline deadline(120s);
  for (const bool in_plan : {true, false}) {
    Couple couple;
    std::string outcome = "nothing went wrong";
    bool own = false;
    std::thread peer([&] {
      move::CollectiveJob job = couple.job(1);
      if (in_plan) {
        job.limits.staging_bytes = 0;
      } else {
        job.outgoing.clear();
      }
      try {
        couple.run(1, std::move(job));
      } catch (const RoundsFailed& error) {
        own = error.cause == RoundsFailed::Cause::own;
        outcome = error.what();
      } catch (const std::exception& error) {
        own = true;
        outcome = error.what();
      }
    });
    const auto began = SteadyClock::now();
    BOOST_CHECK_EXCEPTION(couple.run(0), RoundsFailed, group_failed);
    peer.join();
    BOOST_TEST(own, outcome);
    BOOST_TEST((SteadyClock::now() - began < promptly));
  }
}

BOOST_AUTO_TEST_CASE(requests_of_members_that_there_are_not_are_refused) {
  const Box box = Box::whole({4});
  for (const std::uint32_t source : {0u, 2u, 77u}) {
    std::vector<wire::ExchangeNote> notes(2);
    notes[0].requests = {{source, 0, box, 4, 4, 1}};
    BOOST_CHECK_EXCEPTION(collective_job(notes, both(), 1, 100, {}, {}), Error,
                          [](const Error& e) { return e.code() == ErrorCode::transport_failed; });
  }
}

BOOST_AUTO_TEST_SUITE_END()
