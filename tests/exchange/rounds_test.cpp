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

#include "exchange/made_exchange_host.hpp"
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
    return members[own]->run(
        std::move(its_job),
        {.restore = steps[own], .writes = true, .members = {0, 1}, .deadline = SteadyClock::now() + within},
        hosts[own]);
  }

  std::array<Bytes, 2> out{Bytes(1000, std::byte{1}), Bytes(1000, std::byte{2})};
  std::array<Bytes, 2> in{Bytes(1000), Bytes(1000)};
  std::array<std::optional<ExchangeRounds>, 2> members;
  std::array<MadeExchangeHost, 2> hosts;
  std::array<std::shared_ptr<RoundsStep>, 2> steps{std::make_shared<RoundsStep>(RoundsGroup{"loopback", 0, {}}),
                                                   std::make_shared<RoundsStep>(RoundsGroup{"loopback", 1, {}})};
};

// The note of a member with memory on a device and the collectives that it may use.
wire::ExchangeNote on_device(std::int16_t device, std::vector<std::string> collectives = {"nccl (2.27.3)"}) {
  wire::ExchangeNote note;
  note.device = device;
  note.unasked = true;
  note.collectives = std::move(collectives);
  return note;
}
std::string_view name_of(const GroupChoice& choice) {
  return choice.collective == nullptr ? "none" : choice.collective->name;
}
bool refuses(const std::vector<wire::ExchangeNote>& notes, ErrorCode code, const std::string& text) {
  const Error error = failure_of([&] { agree_on_group(notes); });
  return error.code() == code && says(error, text);
}

}  // namespace

BOOST_AUTO_TEST_CASE(host_memory_goes_in_rounds_where_somebody_asks_for_them) {
  wire::ExchangeNote note;
  note.collectives = offered_collectives(MemoryKind::host);
  BOOST_REQUIRE(!note.collectives.empty());
  note.unasked = true;
  BOOST_TEST(name_of(agree_on_group(std::vector{note, note})) == "none");
  wire::ExchangeNote forced = note;
  forced.forced = true;
  const GroupChoice choice = agree_on_group(std::vector{note, forced});
  BOOST_TEST(name_of(choice) == "loopback");
  BOOST_TEST(choice.forced);
  BOOST_TEST((choice.members == std::vector{0, 1}));
  // Threads of another process have another domain.
  for (const auto& other : {std::vector<std::string>{"loopback (process 1)"}, std::vector<std::string>{}}) {
    forced.collectives = other;
    BOOST_TEST(refuses({note, forced}, ErrorCode::unsupported, "member 1 offers"));
  }
}

BOOST_AUTO_TEST_CASE(device_memory_may_go_in_rounds_unasked_where_all_offer_them) {
  const GroupChoice choice = agree_on_group(std::vector{on_device(0), on_device(1)});
  BOOST_TEST(name_of(choice) == "nccl");
  BOOST_TEST(!choice.forced);
  BOOST_TEST((choice.devices == std::vector{0, 1}));
  // One member has another version, has none, or does not allow it.
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), on_device(0, {"nccl (2.18.1)"})})) == "none");
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), on_device(0, {})})) == "none");
  wire::ExchangeNote unwilling = on_device(0);
  unwilling.unasked = false;
  BOOST_TEST(name_of(agree_on_group(std::vector{on_device(0), unwilling})) == "none");
  // A member that forces rounds gets an error.
  wire::ExchangeNote forced = on_device(0, {});
  forced.forced = true;
  BOOST_TEST(refuses({on_device(0), forced}, ErrorCode::unsupported, "member 1 offers none"));
}

BOOST_AUTO_TEST_CASE(a_group_is_of_the_members_with_device_memory) {
  wire::ExchangeNote host;
  host.unasked = true;
  host.collectives = {"loopback (process 1)"};
  const GroupChoice choice = agree_on_group(std::vector{host, on_device(3), host, on_device(1)});
  BOOST_TEST(name_of(choice) == "nccl");
  BOOST_TEST((choice.members == std::vector{1, 3}));
  BOOST_TEST(choice.rank_of(3) == 1);
  BOOST_TEST(choice.rank_of(2) == -1);
  BOOST_TEST((choice.devices == std::vector{RoundsGroup::nowhere, 3, RoundsGroup::nowhere, 1}));
  BOOST_TEST(name_of(agree_on_group(std::vector{host, on_device(3)})) == "none");
}

BOOST_AUTO_TEST_CASE(a_group_is_kept_where_all_of_it_have_kept_the_same) {
  const auto kept = [](std::uint8_t id, std::uint32_t size) {
    wire::ExchangeNote note = on_device(0);
    note.kept_group = Bytes(4, std::byte{id});
    note.kept_size = size;
    return note;
  };
  BOOST_TEST((agree_on_group(std::vector{kept(7, 2), kept(7, 2)}).kept == Bytes(4, std::byte{7})));
  BOOST_TEST(agree_on_group(std::vector{kept(7, 2), kept(8, 2)}).kept.empty());
  BOOST_TEST(agree_on_group(std::vector{kept(7, 2), on_device(0)}).kept.empty());
  BOOST_TEST(agree_on_group(std::vector{kept(7, 3), kept(7, 3)}).kept.empty());
}

BOOST_AUTO_TEST_CASE(communicators_are_given_by_all_of_a_group_or_by_none) {
  wire::ExchangeNote giving = on_device(0);
  giving.adopts = true;
  BOOST_TEST(agree_on_group(std::vector{giving, giving}).adopted);
  BOOST_TEST(!agree_on_group(std::vector{on_device(0), on_device(0)}).adopted);
  BOOST_TEST(refuses({giving, on_device(0)}, ErrorCode::invalid_argument, "not by 1"));
}

BOOST_AUTO_TEST_CASE(one_member_without_a_direct_path_brings_all_into_rounds) {
  std::vector<wire::ExchangeNote> notes(3);
  BOOST_TEST(!needs_rounds(notes));
  notes[2].indirect = true;
  BOOST_TEST(needs_rounds(notes));
}

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
  BOOST_CHECK_EXCEPTION(couple.run(1), GroupFailed, [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
}

// Before the rounds begin, and during rounds if the other member does not come.
BOOST_AUTO_TEST_CASE(a_restore_that_ends_ends_the_rounds_that_write_for_it) {
  const Deadline deadline(120s);
  for (const bool before : {true, false}) {
    Couple couple;
    std::thread stopping([&] {
      if (!before) couple.hosts[0].await_rounds();
      couple.hosts[0].loop()->call([&] { couple.steps[0]->stop(); });
    });
    if (before) stopping.join();
    BOOST_CHECK_EXCEPTION(couple.run(0), RestoreEnded, [](const Error& e) { return e.code() == ErrorCode::cancelled; });
    if (!before) stopping.join();
    BOOST_TEST(!couple.steps[0]->writing());
    BOOST_CHECK_EXCEPTION(couple.run(1), GroupFailed, [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
  }
}

BOOST_AUTO_TEST_CASE(members_that_are_gone_or_give_up_end_the_rounds_at_once) {
  const Deadline deadline(120s);
  for (const bool gone : {true, false}) {
    Couple couple;
    std::thread telling([&] {
      couple.hosts[0].await_rounds();
      couple.hosts[0].notify({{7}, false});  // not a member of the group
      couple.hosts[0].notify(gone ? FailureNotices{{1}, false} : FailureNotices{{}, true});
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
    couple.hosts[0].await_rounds();
    couple.hosts[0].close();
  });
  const Error error = failure_of([&] { couple.run(0); });
  closing.join();
  BOOST_TEST((error.code() == ErrorCode::invalid_argument), error.what());
  BOOST_TEST(!couple.steps[0]->writing());
  BOOST_CHECK_EXCEPTION(couple.run(1), GroupFailed, [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
  BOOST_CHECK_EXCEPTION(couple.run(0), Error,  // fails before it begins
                        [](const Error& e) { return e.code() == ErrorCode::invalid_argument; });
}

BOOST_AUTO_TEST_CASE(who_gives_up_before_the_rounds_ends_those_of_the_other_one) {
  const Deadline deadline(120s);
  Couple couple;
  couple.members[1]->give_up();
  BOOST_CHECK_EXCEPTION(couple.run(0), GroupFailed, [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
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
      } catch (const GroupFailed& error) {
        outcome = error.what();
      } catch (const std::exception& error) {
        own = true;
        outcome = error.what();
      }
    });
    const auto began = SteadyClock::now();
    BOOST_CHECK_EXCEPTION(couple.run(0), GroupFailed, [](const Error& e) { return e.code() == ErrorCode::peer_lost; });
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
