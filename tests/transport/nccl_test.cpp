// SPDX-License-Identifier: Apache-2.0
// NCCL's own behaviour and faults, over a fake of its library and of the devices.
#include <array>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "support/deadline.hpp"
#include "support/fake_nccl.hpp"
#include "support/rounds.hpp"

BOOST_AUTO_TEST_SUITE(nccl_collective)

using namespace shardwire;
using namespace shardwire::test;
using namespace shardwire::transport;
using namespace std::chrono_literals;

namespace {

constexpr MemoryPlace on_device{MemoryKind::cuda, 0};

/// Two members, and a round that sends bytes from 0 to 1.
struct Couple {
  /// `communicators`: the caller's own, if any.
  explicit Couple(const FakeNcclFaults& faults = {}, const nccl::Bounds& bounds = {},
                  const std::array<nccl::Communicator*, 2>& communicators = {}) {
    if (communicators[0] == nullptr) FakeNccl::instance().reset(faults);
    for (int rank = 0; rank < 2; ++rank) {
      members.push_back(nccl::open_with({.id = id,
                                         .rank = rank,
                                         .size = 2,
                                         .device = 0,
                                         .communicator = communicators[static_cast<std::size_t>(rank)]},
                                        FakeNccl::api(), std::make_shared<FakeNcclDevices>(), bounds));
    }
  }
  ~Couple() {
    members.clear();
    BOOST_TEST(FakeNccl::instance().elsewhere() == 0);
  }
  Couple(const Couple&) = delete;
  Couple& operator=(const Couple&) = delete;
  void post() {
    const GroupSend send{1, {out.data(), out.size(), on_device}};
    const GroupReceive receive{0, {in.data(), in.size(), on_device}};
    members[0]->round(std::span(&send, 1), {}, results[0].completion());
    members[1]->round({}, std::span(&receive, 1), results[1].completion());
  }
  template <typename Met>
  bool until(Met met, std::chrono::milliseconds at_most = promptly) {
    return progress_until(members, met, at_most);
  }
  bool until_both_done(std::chrono::milliseconds at_most = promptly) {
    return until([this] { return results[0].done && results[1].done; }, at_most);
  }

  Bytes id = make_fake_nccl_id();
  Bytes out = Bytes(5000, std::byte{7});
  Bytes in = Bytes(5000);
  std::vector<std::unique_ptr<Collective>> members;
  std::array<RoundResult, 2> results;
};

/// A caller's blocking communicators, like PyTorch's.
std::array<nccl::Communicator*, 2> blocking_communicators(const FakeNcclFaults& faults) {
  FakeNccl::instance().reset(faults);
  std::array<nccl::Communicator*, 2> made{};
  nccl::UniqueId id;
  FakeNccl::api().unique_id(&id);
  nccl::Config config;
  config.blocking = 1;
  for (int rank = 0; rank < 2; ++rank) {
    FakeNccl::with_device(0,
                          [&] { FakeNccl::api().init(&made[static_cast<std::size_t>(rank)], 2, id, rank, &config); });
  }
  return made;
}

bool failed_with(const RoundResult& result, ErrorCode code) {
  return result.done && result.outcome && result.outcome->code == code;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_round_waits_for_a_group_that_takes_long_to_meet) {
  const Deadline deadline(120s);
  Couple couple({.polls = 50});
  couple.post();
  couple.members[0]->progress();
  BOOST_TEST((couple.in == Bytes(5000)));
  BOOST_REQUIRE(couple.until_both_done());
  BOOST_TEST((!couple.results[0].outcome && !couple.results[1].outcome));
  BOOST_TEST((couple.in == couple.out));
  BOOST_TEST(FakeNccl::instance().early() == 0);
}

BOOST_AUTO_TEST_CASE(groups_are_taken_leave_of_and_not_aborted) {
  const Deadline deadline(120s);
  Couple couple;
  couple.post();
  BOOST_REQUIRE(couple.until_both_done());
  couple.members.clear();
  BOOST_TEST(FakeNccl::instance().destroyed() == 2);
  BOOST_TEST(FakeNccl::instance().aborts() == 0);
}

BOOST_AUTO_TEST_CASE(a_group_that_cannot_be_made_is_refused_at_once) {
  const Deadline deadline(120s);
  BOOST_CHECK_EXCEPTION(Couple({.init_result = nccl::system_error}), Error, [](const Error& e) {
    return e.code() == ErrorCode::transport_failed &&
           std::string(e.what()).find("what the fake was told to say") != std::string::npos;
  });
  BOOST_TEST(FakeNccl::instance().aborts() == 1);  // and no thread uses it any more
}

BOOST_AUTO_TEST_CASE(a_group_that_fails_while_it_is_made_ends_the_first_round) {
  const Deadline deadline(120s);
  Couple couple({.polls = 3, .init_state = nccl::internal_error});
  couple.post();
  BOOST_REQUIRE(couple.until_both_done());
  for (const RoundResult& result : couple.results) BOOST_TEST(failed_with(result, ErrorCode::transport_failed));
  // All later rounds fail as well.
  couple.results = {};
  couple.post();
  BOOST_REQUIRE(couple.until_both_done());
  BOOST_TEST(failed_with(couple.results[0], ErrorCode::transport_failed));
}

BOOST_AUTO_TEST_CASE(who_waits_for_a_member_that_never_comes_can_give_up) {
  const Deadline deadline(120s);
  Couple couple({.absent_rank = 1});
  couple.post();
  BOOST_TEST(!couple.until_both_done(50ms));
  for (const auto& member : couple.members) member->abort();
  BOOST_REQUIRE(couple.until_both_done());
  BOOST_TEST(failed_with(couple.results[0], ErrorCode::cancelled));
  BOOST_TEST(FakeNccl::instance().aborts() == 2);
}

BOOST_AUTO_TEST_CASE(a_peer_that_is_gone_is_told_where_nccl_tells_it) {
  const Deadline deadline(120s);
  Couple couple({.round_state = nccl::remote_error, .rounds_hang = true});
  couple.post();
  BOOST_REQUIRE(couple.until_both_done());
  for (const RoundResult& result : couple.results) BOOST_TEST(failed_with(result, ErrorCode::peer_lost));
}

// One rank aborts, and the other rank's library does not notice.
BOOST_AUTO_TEST_CASE(a_round_that_hangs_ends_when_its_member_gives_up) {
  const Deadline deadline(120s);
  Couple couple({.rounds_hang = true});
  couple.post();
  BOOST_TEST(!couple.until_both_done(50ms));
  couple.members[1]->abort();
  BOOST_REQUIRE(couple.until([&] { return couple.results[1].done; }));
  BOOST_TEST(!couple.until([&] { return couple.results[0].done; }, 50ms));
  couple.members[0]->abort();
  BOOST_REQUIRE(couple.until_both_done());
  for (const RoundResult& result : couple.results) BOOST_TEST(failed_with(result, ErrorCode::cancelled));
}

BOOST_AUTO_TEST_CASE(a_stream_that_calls_nobody_ends_its_round) {
  const Deadline deadline(120s);
  // The stream accepts the next callback, or the device has failed permanently.
  for (const ErrorCode refusal : {ErrorCode::out_of_resources, ErrorCode::transport_failed}) {
    Couple couple({.refused_calls = 1, .refusal = refusal});
    const auto began = std::chrono::steady_clock::now();
    couple.post();
    const auto one_failed = [&] {
      return failed_with(couple.results[0], refusal) || failed_with(couple.results[1], refusal);
    };
    BOOST_REQUIRE(couple.until(one_failed));
    for (const auto& member : couple.members) {
      member->abort();
      BOOST_TEST(!member->is_stuck());
    }
    BOOST_REQUIRE(couple.until_both_done());
    BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  }
}

BOOST_AUTO_TEST_CASE(an_abort_that_hangs_holds_nobody_up) {
  const Deadline deadline(120s);
  constexpr auto bound = 3s;
  Couple couple({.rounds_hang = true, .abort_hangs = true}, {.abort = bound, .destroy = 100ms});
  couple.post();
  BOOST_TEST(!couple.until_both_done(20ms));
  const auto began = std::chrono::steady_clock::now();
  for (const auto& member : couple.members) member->abort();
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));  // does not wait for it
  BOOST_REQUIRE(couple.until_both_done());
  BOOST_TEST((std::chrono::steady_clock::now() - began >= bound));
  BOOST_TEST(failed_with(couple.results[0], ErrorCode::cancelled));
  BOOST_TEST(couple.results[0].outcome->message.find("may still write") != std::string::npos);
  const auto leaving = std::chrono::steady_clock::now();
  couple.members.clear();
  BOOST_TEST((std::chrono::steady_clock::now() - leaving < promptly));
  FakeNccl::instance().release();
  BOOST_TEST(
      run_until([] { std::this_thread::sleep_for(1ms); }, [] { return FakeNccl::instance().aborts() == 2; }, promptly));
}

BOOST_AUTO_TEST_CASE(who_goes_in_the_middle_of_a_round_does_not_wait_for_it) {
  const Deadline deadline(120s);
  Couple couple({.rounds_hang = true});
  couple.post();
  BOOST_TEST(!couple.until_both_done(20ms));
  const auto began = std::chrono::steady_clock::now();
  couple.members.clear();
  BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
  BOOST_TEST(FakeNccl::instance().aborts() == 2);
}

BOOST_AUTO_TEST_CASE(memory_of_the_host_and_of_other_devices_is_refused) {
  const Deadline deadline(120s);
  Couple couple;
  Bytes memory(8);
  for (const MemoryPlace place : {MemoryPlace{}, MemoryPlace{MemoryKind::cuda, 1}}) {
    const GroupSend send{1, {memory.data(), memory.size(), place}};
    BOOST_CHECK_EXCEPTION(couple.members[0]->round(std::span(&send, 1), {}, {}), Error,
                          [](const Error& e) { return e.code() == ErrorCode::unsupported; });
  }
}

BOOST_AUTO_TEST_CASE(a_communicator_of_the_caller_has_to_fit_and_stays_his) {
  const Deadline deadline(120s);
  FakeNccl::instance().reset();
  nccl::UniqueId id;
  FakeNccl::api().unique_id(&id);
  nccl::Communicator* own = nullptr;
  nccl::Config config;
  config.blocking = 0;
  FakeNcclDevices devices;
  devices.on_device(0, [&] { FakeNccl::api().init(&own, 1, id, 0, &config); });
  const auto adopt = [&](int rank, int size, int device) {
    return nccl::open_with({.id = {}, .rank = rank, .size = size, .device = device, .communicator = own},
                           FakeNccl::api(), std::make_shared<FakeNcclDevices>());
  };
  const auto invalid = [](const Error& e) { return e.code() == ErrorCode::invalid_argument; };
  BOOST_CHECK_EXCEPTION(adopt(1, 1, 0), Error, invalid);
  BOOST_CHECK_EXCEPTION(adopt(0, 2, 0), Error, invalid);
  BOOST_CHECK_EXCEPTION(adopt(0, 1, 1), Error, invalid);
  {
    const auto group = adopt(0, 1, 0);
    Bytes out(100, std::byte{3});
    Bytes in(100);
    const GroupSend send{0, {out.data(), out.size(), on_device}};
    const GroupReceive receive{0, {in.data(), in.size(), on_device}};
    RoundResult result;
    group->round(std::span(&send, 1), std::span(&receive, 1), result.completion());
    BOOST_REQUIRE(run_until([&] { group->progress(); }, [&] { return result.done; }, promptly));
    BOOST_TEST((in == out));
  }
  BOOST_TEST(FakeNccl::instance().destroyed() == 0);
  BOOST_TEST(FakeNccl::instance().aborts() == 0);
  FakeNccl::api().destroy(own);
}

BOOST_AUTO_TEST_CASE(a_communicator_of_the_caller_that_blocks_holds_nobody_up) {
  const Deadline deadline(120s);
  for (const bool hangs : {false, true}) {
    const auto communicators = blocking_communicators({.rounds_hang = hangs});
    Couple couple({}, {.abort = hangs ? 200ms : 20'000ms}, communicators);
    const auto blocked = [](int count) { return [count] { return FakeNccl::instance().blocked() == count; }; };
    const auto began = std::chrono::steady_clock::now();
    couple.post();
    if (hangs) BOOST_REQUIRE(couple.until(blocked(2)));
    BOOST_TEST(couple.until_both_done(hangs ? 50ms : promptly) == !hangs);
    if (!hangs) BOOST_REQUIRE(couple.until(blocked(0)));
    BOOST_TEST((couple.in == couple.out) == !hangs);
    for (const auto& member : couple.members) member->abort();
    BOOST_REQUIRE(couple.until_both_done());
    BOOST_TEST((std::chrono::steady_clock::now() - began < promptly));
    BOOST_TEST(couple.members[0]->is_stuck() == hangs);
    if (hangs) {
      BOOST_TEST(failed_with(couple.results[0], ErrorCode::cancelled));
      BOOST_TEST(couple.results[0].outcome->message.find("may still write") != std::string::npos);
    }
    couple.members.clear();
    BOOST_TEST(FakeNccl::instance().blocked() == (hangs ? 2 : 0));
    FakeNccl::instance().release();
    BOOST_REQUIRE(run_until([] { std::this_thread::sleep_for(1ms); },
                            [] { return FakeNccl::instance().blocked() == 0; }, promptly));
    BOOST_TEST(FakeNccl::instance().aborts() == 0);
    for (nccl::Communicator* const own : communicators) {
      FakeNccl::with_device(0, [own] { FakeNccl::api().destroy(own); });
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_library_of_nccl_says_why) {
  const nccl::FoundApi absent = nccl::load_api("libshardwire-there-is-none.so.2");
  BOOST_TEST(absent.api == nullptr);
  BOOST_TEST(absent.why_not.find("libshardwire-there-is-none.so.2") != std::string::npos);
  const nccl::FoundApi other = nccl::load_api("libc.so.6");
  BOOST_TEST(other.api == nullptr);
  BOOST_TEST(other.why_not.find("says no version") != std::string::npos);
  BOOST_TEST(nccl::version_text(21803) == "2.18.3");
}

BOOST_AUTO_TEST_CASE(a_library_that_is_old_or_lacks_something_says_so) {
  const char* const file = std::getenv("TEST_OTHER_NCCL");
  BOOST_REQUIRE(file != nullptr);
  ::setenv("TEST_NCCL_VERSION", "21705", 1);
  const nccl::FoundApi old = nccl::load_api(file);
  BOOST_TEST(old.api == nullptr);
  BOOST_TEST(old.why_not == "NCCL 2.17.5 is too old: 2.18.0 or newer is needed");
  ::setenv("TEST_NCCL_VERSION", "21803", 1);
  const nccl::FoundApi bare = nccl::load_api(file);
  BOOST_TEST(bare.api == nullptr);
  BOOST_TEST(bare.why_not.find("it has no ncclGetUniqueId") != std::string::npos, bare.why_not);
  ::unsetenv("TEST_NCCL_VERSION");
}

// A pointer does not tell which library created it.
BOOST_AUTO_TEST_CASE(a_communicator_is_of_the_library_that_we_loaded_or_it_is_refused) {
  const std::vector<std::string> one{"/usr/lib/libcudart.so.12", "/venv/nvidia/nccl/lib/libnccl.so.2", ""};
  BOOST_TEST(nccl::doubt_about_library(one, true) == "");
  BOOST_TEST(nccl::doubt_about_library(one, false).find("was not loaded before") != std::string::npos);
  std::vector<std::string> two = one;
  two.emplace_back("/usr/lib/libnccl.so.2.18.1");
  BOOST_TEST(nccl::doubt_about_library(two, true).find("2 copies") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
